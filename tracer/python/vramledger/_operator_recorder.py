"""The recorder of one forward's operators: what ran, on which tensors, and which storages lie under them."""

import collections.abc
import itertools
import sys
import threading
import traceback
import weakref

import torch

from . import _describe, _operator_key
from ._operator_key import Key, run_unseen

SCHEMA = "vramledger.operators/1"
NONE, PARAMETER, BUFFER, INPUT = range(4)                    # roles of storages
CHECKPOINT, HOST, UNKNOWN = range(3)                         # kinds of regions
_GRAD, _AUTOCAST = 1, 2                                      # flags of operators

_NO_DISPATCH = torch.Tensor.__torch_dispatch__

_MAX_OPERATORS = 100_000

_numbers = itertools.count(1)         # of the lists in the trace
_paths = weakref.WeakKeyDictionary()  # module -> path, of all models met


class _Numbers:
    """Numbers for values in the order in which they are first seen."""

    def __init__(self):
        self.of = {}
        self.values = []

    def __getitem__(self, value):
        number = self.of.get(value)
        if number is None:
            number = self.of[value] = len(self.values)
            self.values.append(value)
        return number


class Recorder:
    """Thread rule: used by the thread that made it; operators of other threads are not seen."""

    def __init__(self, device_types, library=None):
        self.library = library
        self.number = None            # of the list in the trace, once it is complete
        self.thread = threading.get_ident()
        self.device_types = device_types
        self.failed = None
        self.recording = True
        self.names, self.modules, self.dtypes = _Numbers(), _Numbers(), _Numbers()
        self.storages = []            # [bytes, role]
        self.tensors = _Numbers()     # (storage, dtype, requires grad, shape)
        self.regions = []             # (kind, name)
        self.operators = []
        self._stack = []              # paths of the modules that run
        self._module = -1
        self._known = {}              # address of a storage -> (number, data pointer, bytes)
        self._producer = {}           # number of a storage that code without grad mode made -> its region
        # Hooks that pack, and their regions. Weak: a checkpoint's hook keeps the arguments of what it will run again.
        self._region_of = weakref.WeakKeyDictionary()
        self._made_by_model = set()   # numbers of storages
        self._outputs = []            # (weak reference to a tensor that a root gave out, storage)
        self._handles = []
        self._held = []
        self.when_left = None         # called with the recorder after the outermost module, once the recording is over
        self._outer = None            # the recorder that saw the operators before

    # ---- what the program does ----

    def begin(self):
        module = torch.nn.modules.module
        self._handles = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        key = Key.get()
        self._outer, _operator_key.active = _operator_key.active, self
        key.include(True)

    def add_root(self, root, name, args, kwargs):
        """A model begins its forward: its modules' paths, and what its storages are."""
        for path, module in root.named_modules():
            path = _describe.plain_path(root, path)
            _paths[module] = f"{name}.{path}" if path else name
        for role, tensors in ((PARAMETER, root.parameters()), (BUFFER, root.buffers())):
            for tensor in tensors:
                if not torch.nn.parameter.is_lazy(tensor):
                    self._set_role(tensor, role)
        self._mark_inputs((args, kwargs))

    def _mark_inputs(self, inputs):
        for tensor in tensors_in(inputs):
            # As the trace has it: what a model made is an activation, whatever it is fed to.
            if tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter):
                self._set_role(tensor, INPUT)

    def _set_role(self, tensor, role):
        for part in _parts(tensor):
            if (storage := self._storage(part)) >= 0 and (role != INPUT or storage not in self._made_by_model):
                self.storages[storage][1] = role

    def enter_module(self, module):
        self._stack.append(self._module)
        self._module = self.modules[_paths.get(module) or type(module).__name__]

    def leave(self):
        if self._stack:
            self._module = self._stack.pop()

    def _enter(self, module, args):
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() != self.thread:
            return
        if not self._stack and self.recording:
            try:
                # _call_impl's frame has the keyword arguments, which a global hook is not given.
                self._mark_inputs((args, sys._getframe(1).f_locals.get("kwargs") or {}))
            except Exception:
                self._fail()
        self.enter_module(module)

    def _leave(self, module, args, output):
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() != self.thread:
            return
        self.leave()
        if self._stack:
            return
        if self.recording:
            self.gave_out(output)
        elif self.when_left is not None:
            self.when_left(self)

    def gave_out(self, output):
        """What a root returns lives on if the program keeps it."""
        try:
            for tensor in tensors_in(output):
                for part in _parts(tensor):
                    if (storage := self._storage(part)) >= 0:
                        self._outputs.append((weakref.ref(part), storage))
                        self._look_at_function(part, storage)
        except Exception:
            self._fail()

    def end(self, tensors=()):
        """The forward is over: stop recording. `tensors`: what the backward starts from."""
        if not self.recording:
            return
        self.recording = False
        try:
            if self.library is not None:
                # What lives at this place of the trace is what the list is to explain.
                self.number = next(_numbers)
                self.library.mark(f"vramledger.operators {self.number}")
            for tensor in tensors:
                if (storage := self._storage(tensor)) >= 0:
                    self._held.append(storage)
                    self._look_at_function(tensor, storage)
            self._held += [storage for reference, storage in self._outputs if reference() is not None]
        except Exception:
            self._fail()

    def remove(self):
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if _operator_key.active is self:
            _operator_key.active, self._outer = self._outer, None
            Key.made.include(_operator_key.active is not None)

    def _fail(self):
        self.recording = False
        self.failed = last_line()

    # ---- operators ----

    def see(self, keyset, func, signature, args, kwargs):
        if torch._C._current_graph_task_id() != -1:
            self.end()  # a backward that was not announced
            return run_unseen(func, args, kwargs)
        if threading.get_ident() != self.thread:
            return run_unseen(func, args, kwargs)
        values = [args[i] if i < len(args) else kwargs.get(name) for i, name in signature.tensors]
        if signature.casts and torch.is_autocast_enabled("cuda") and not any(isinstance(v, (int, float)) for v in values):
            # Autocast comes first: what it calls is seen again, with the tensors that it made.
            return func.redispatch(keyset & Key.made.after, *args, **kwargs)
        try:
            before = self._before(signature, values)
        except Exception:
            self._fail()
        result = run_unseen(func, args, kwargs)
        if self.recording:
            try:
                self._after(signature, before, result)
            except Exception:
                self._fail()
        return result

    def _before(self, signature, values):
        inputs = []
        for value in values:
            if isinstance(value, torch.Tensor):
                inputs.append(self._tensor(value, True))
            elif isinstance(value, (list, tuple)):
                inputs.append([self._tensor(v, True) if isinstance(v, torch.Tensor) else -1 for v in value])
            else:
                inputs.append(-1)
        flags = (_GRAD if torch.is_grad_enabled() else 0) | (_AUTOCAST if _in_autocast() else 0)
        region = self._region()
        if signature.in_place and flags & _GRAD and type(inputs[0]) is int and inputs[0] >= 0:
            self._copy_before(inputs[0], values[0], flags, region)
        return inputs, flags, region

    def _copy_before(self, number, tensor, flags, region):
        """Where its derivative needs what an operator overwrites, autograd copies it first, unseen. Whether it does is the table's to say."""
        dtype, requires_grad, shape = self.tensors.values[number][1:]
        self.storages.append([tensor.numel() * tensor.element_size(), NONE])
        copy = self.tensors[(len(self.storages) - 1, dtype, requires_grad, shape)]
        self.operators.append([self.names["aten::clone"], self._module, flags, region, [number], [copy]])

    def _after(self, signature, before, result):
        inputs, flags, region = before
        read = {self.tensors.values[t][0] for value in inputs for t in (value if isinstance(value, list) else (value,)) if t >= 0}
        results = result if isinstance(result, (list, tuple)) else (result,)
        outputs, makes = [], False
        for value in results:
            if not isinstance(value, torch.Tensor) or not self._is_plain(value):
                outputs.append(-1)
                continue
            address, pointer, size = _identity(value)
            known = self._known.get(address)
            if size and (known is None or known[1:] != (pointer, size) or known[0] not in read and not signature.takes_storage):
                # None of the inputs': new, also where an old one had the same address.
                makes = True
                number = self._new_storage(address, pointer, size)
                if self._module >= 0:
                    self._made_by_model.add(number)
            outputs.append(self._tensor(value, False))
        # A view makes nothing and saves nothing.
        if not makes and not signature.mutable:
            return
        if len(self.operators) >= _MAX_OPERATORS:
            raise RuntimeError(f"a forward of more than {_MAX_OPERATORS:,} operators")
        self.operators.append([self.names[signature.name], self._module, flags, region, inputs, outputs])
        if not flags & _GRAD:
            for t in outputs:
                if t >= 0:
                    self._producer[self.tensors.values[t][0]] = region

    # ---- tensors and storages ----

    def _is_plain(self, tensor):
        """On the device, with one storage of its own."""
        return (tensor.device.type in self.device_types and tensor.layout is torch.strided
                and type(tensor).__torch_dispatch__ is _NO_DISPATCH and not torch.nn.parameter.is_lazy(tensor))

    def _new_storage(self, address, pointer, size):
        number = len(self.storages)
        self.storages.append([size, NONE])
        self._known[address] = (number, pointer, size)
        return number

    def _storage(self, tensor):
        """The number of a tensor's storage; -1 for one on another device or without memory."""
        if not self._is_plain(tensor):
            return -1
        address, pointer, size = _identity(tensor)
        if not size:
            return -1
        known = self._known.get(address)
        if known is None or known[1:] != (pointer, size):
            return self._new_storage(address, pointer, size)
        return known[0]

    def _tensor(self, tensor, is_input):
        storage = self._storage(tensor)
        if storage < 0:
            return -1
        requires_grad = tensor.requires_grad
        # One that no model announced: made in its first forward, or gathered for it.
        if isinstance(tensor, torch.nn.Parameter) and self.storages[storage][1] == NONE:
            self.storages[storage][1] = PARAMETER
        if is_input and requires_grad and storage in self._producer:
            self._look_at_function(tensor, storage)
        return self.tensors[(storage, self.dtypes[str(tensor.dtype).removeprefix("torch.")], int(requires_grad), tuple(tensor.shape))]

    def _look_at_function(self, tensor, storage):
        """A tensor that code without grad mode made and that has a node nevertheless: a custom autograd function's. No table knows
        what those save, but the node does."""
        node = tensor.grad_fn
        if node is None or self._producer.get(storage) is None:
            return
        region = self._producer.pop(storage)
        # In a region, unpacking would run its hooks.
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            return
        name = f"autograd::{type(node).__name__.removesuffix('Backward')}"
        inputs = []
        if region < 0:
            try:
                inputs = [self._tensor(t, False) for t in node.saved_tensors if t is not None]
            except RuntimeError:  # freed, or changed in place since
                name, inputs = f"custom::{name[10:]}", [self._tensor(tensor, False)]
        self.operators.append([self.names[name], self._module, _GRAD, region, inputs, [self._tensor(tensor, False)]])

    def _region(self):
        """The region that saved-tensor hooks make; -1 without any."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is None:
            return -1
        number = self._region_of.get(hooks[0])
        if number is None:
            number = self._region_of[hooks[0]] = len(self.regions)
            kind, name = _region_kind(hooks[0])
            modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
            if kind == CHECKPOINT and any(type(mode).__module__ == "torch.utils.checkpoint" for mode in modes):
                kind, name = UNKNOWN, "selective checkpointing"
            self.regions.append((kind, name))
        return number

    def to_json(self):
        return {"schema": SCHEMA, "names": self.names.values, "modules": self.modules.values, "dtypes": self.dtypes.values,
                "storages": self.storages, "tensors": self.tensors.values, "regions": self.regions, "operators": self.operators,
                "held": sorted(set(self._held))}


def _in_autocast():
    """Inside a cast of its own autocast reads as disabled, but is nested as deep as ever."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


def _region_kind(pack):
    """What saved-tensor hooks do, by the function that packs."""
    module, name = getattr(pack, "__module__", ""), getattr(pack, "__qualname__", type(pack).__name__)
    if module == "torch.utils.checkpoint":
        return CHECKPOINT, "checkpoint"
    if module == "torch.autograd.graph" and name.startswith("save_on_cpu"):
        return HOST, "save_on_cpu"
    return UNKNOWN, f"saved-tensor hooks {module}.{name}"


def _identity(tensor):
    storage = tensor.untyped_storage()
    # Tensors without memory, such as those on the meta device, have no data pointer.
    return storage._cdata, storage.data_ptr(), storage.nbytes()


def _parts(tensor):
    tensor = getattr(tensor, "_local_tensor", tensor)
    return (tensor,) if tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__") else ()


def tensors_in(value, depth=0):
    """Tensors in what a model takes or returns: containers, and objects with attributes (caches, outputs)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 6 and not isinstance(value, (str, bytes, int, float, bool, type(None), torch.nn.Module, type)):
        if isinstance(value, collections.abc.Mapping):
            items = value.values()
        elif isinstance(value, (list, tuple, set)):
            items = value
        else:
            items = getattr(value, "__dict__", {}).values()
        for item in items:
            yield from tensors_in(item, depth + 1)


def last_line():
    """Of the exception that is handled: its class and message."""
    return traceback.format_exc().strip().splitlines()[-1]
