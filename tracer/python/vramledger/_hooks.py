"""PyTorch's global module and optimizer hooks, which tell the allocator what the program is doing and what each storage holds.

Nothing here needs a call from the training script. All names are found by walking modules and optimizers.
"""

import collections.abc
import gc
import sys
import traceback
import warnings
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _describe, _graph, _operators, _wraps
from ._library import BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, PHASES, LibraryError, module_calls

# Optimizer states are walked at the first steps, when they appear, and then now and again for optimizers that replace them.
_STATE_WALK_FIRST = 2
_STATE_WALK_EVERY = 100


class Hooks:
    """One per process. Thread rule: hooks run on whichever thread runs the module or optimizer. No hook raises: training goes on
    with fewer names."""

    def __init__(self, library):
        self.library = library
        self._module_ids = {}         # id(module) -> (weak reference, string id)
        self._roots = {}              # id(root) -> (weak reference, RootDescription)
        self._optimizers = {}         # id(optimizer) -> _OptimizerNames
        self._parameter_names = {}    # id(parameter) -> (weak reference, name)
        self._root_names = {}         # how many roots of a class there are
        self._optimizer_names = {}
        self._models = []
        self._optimizer_metadata = []
        self._calls = None            # the extension that follows module calls, where it was built for this Python
        self._described_now = 0       # threads that describe a model at the moment
        self.graph = None             # reads of the autograd graph, where the library for this PyTorch was built
        self._trained_by = 0          # number of optimizers when the trained parameters were last told from the others
        self._complained = False

    def attach(self):
        _keep_from_compiler(self._name_of, self._begin_root, self._see_result, self._before_forward, self._after_forward, self._before_step, self._after_step)
        self._follow_modules()
        try:
            self.graph = _graph.Graph(self.library)
        except LibraryError:
            pass
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        _wraps.wrap_all(self)
        self.library.hooks_active(1)

    def _complain(self):
        if not self._complained:
            self._complained = True
            print(f"vramledger: a hook failed, and some names will be missing:\n{traceback.format_exc()}", file=sys.stderr, flush=True)

    # ---- modules ----

    def _follow_modules(self):
        """Through the extension (one indirect call a module), or else through PyTorch's global hooks, which cost a module call 1-2 us each."""
        library = self.library
        try:
            calls = module_calls()
            addresses = [library.address(f"vramledger_{name}") for name in ("enter_module", "exit_module", "module_depth", "forward_failed")]
            calls.attach(torch.nn.Module._call_impl, *addresses, self._name_of, self._begin_root, self._see_result)
            self._calls = calls
        except (LibraryError, RuntimeError):
            module = torch.nn.modules.module
            module.register_module_forward_pre_hook(self._before_forward)
            # Without always_call the early stop of checkpointing would skip the hook and leave the module on the stack.
            module.register_module_forward_hook(self._after_forward, always_call=True)
            # Ours return at once inside compiled code, so that firing for the wrapper too does no harm.
            warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")

    def _before_forward(self, module, args):
        if torch.compiler.is_compiling() or _operators.probing():
            return
        library = self.library
        name = self._name_of(module) or 0
        if library.module_depth() == 0:
            # _call_impl's frame has the keyword arguments, which the global hook is not given.
            self._begin_root(module, args, sys._getframe(1).f_locals.get("kwargs") or {})
        library.enter_module(name, module.training)

    def _after_forward(self, module, args, output):
        if torch.compiler.is_compiling() or _operators.probing():
            return
        self.library.exit_module()
        self._see_result(module, args, output)

    def _name_of(self, module):
        """The string id of the module's path, None while a compiler or torch.jit traces the program, False where it only runs to be listed."""
        if _operators.probing():
            return False
        if _is_traced():
            return None
        try:
            known = self._module_ids.get(id(module))
            if known is None or known[0]() is not module:
                known = self._meet_module(module)
            return known[1]
        except Exception:
            self._complain()
            return 0

    def _begin_root(self, module, args, kwargs):
        """Before the outermost module of a thread."""
        if _is_traced():
            return
        if hasattr(module, "_orig_mod"):
            _operators.finish()  # before the compiler sees the recorder's hooks
        try:
            self._enter_root(module, args, kwargs)
        except Exception:
            self._complain()

    def _see_result(self, module, args, output):
        """After a module's forward; through the extension only while a model is being described."""
        describing = _describe.current()
        if describing is None:
            return
        try:
            describing.see(module, args, output)
            if self.library.module_depth() == 0:
                _describe.finish()
                self._watch(-1)
                self._publish_models()
        except Exception:
            self._complain()

    def _watch(self, change):
        self._described_now += change
        if self._calls is not None:
            self._calls.watch_results(self._described_now > 0)

    def _meet_module(self, module):
        """A module not seen before: name it and all below it from here."""
        if self.library.module_depth() == 0:
            self.name_model(module)
        else:
            self._module_ids[id(module)] = (weakref.ref(module), self.library.intern(type(module).__name__))
        return self._module_ids[id(module)]

    def _enter_root(self, module, args, kwargs):
        known = self._roots.get(id(module))
        if known is None or known[0]() is not module:
            if id(module) not in self._module_ids or not self._is_part_of_a_root(module):
                self.name_model(module)
        known = self._roots.get(id(module))
        if known is not None and module.training and not known[1].complete and torch.is_grad_enabled():
            # A forward that failed has left its description behind.
            if _describe.current() is None:
                self._watch(1)
            _describe.begin(known[1])
            _operators.enter_root(self.library, module, known[1].name, args, kwargs, from_hook=self._calls is None)
        if known is not None and module.training:
            known[1].trains = known[1].trains or torch.is_grad_enabled()
            self._compare_batch(known[1], args, kwargs)
        self._name_inputs((args, kwargs))

    def _compare_batch(self, description, args, kwargs):
        """Where batches differ from step to step, no peak belongs to the batch size that the description has."""
        batch = _describe.first_batch(args, kwargs)
        if description.root_batch is None:
            description.root_batch = batch
        elif batch not in (None, description.root_batch) and not description.batch_varies:
            description.batch_varies = True
            self.library.metadata({"batch_size_varies": True})

    def _is_part_of_a_root(self, module):
        return any(reference() is not None and any(m is module for m in reference().modules()) for reference, _ in self._roots.values())

    def name_model(self, root, name=None):
        """Names the modules, parameters and buffers of a root module. Called at its first forward, or by attach()."""
        if name is None:
            kind = type(_describe.unwrapped(root)).__name__
            count = self._root_names[kind] = self._root_names.get(kind, 0) + 1
            name = kind if count == 1 else f"{kind}#{count}"
        library = self.library
        for path, module in root.named_modules():
            path = _describe.plain_path(root, path)
            full = f"{name}.{path}" if path else name
            if hasattr(module, "_orig_mod"):
                full += " (compiled)"  # all that happens inside is one region
            self._module_ids[id(module)] = (weakref.ref(module), library.intern(full))
        if self._calls is not None:
            self._calls.forget()
        description = _describe.RootDescription(root, name, self._described())
        self._roots[id(root)] = (weakref.ref(root), description)
        # A loss function called on its own is a root too, but no model.
        if description.parameters or description.buffers:
            self._models.append((description, weakref.ref(root)))
            self.name_tensors(root, name)
            self._publish_models()

    def _described(self):
        return {id(p) for _, reference in self._models if (model := reference()) is not None for p in model.parameters()}

    def name_tensors(self, root, name):
        """Tells what the storages of the parameters and buffers hold. Cheap enough to be repeated after a move to the device."""
        for path, parameter in root.named_parameters(remove_duplicate=False):
            full = f"{name}.{_describe.plain_path(root, path)}"
            # A tied weight is known by its first name; the others say which modules use it.
            known = self._parameter_names.get(id(parameter))
            if known is None or known[0]() is not parameter:
                self._parameter_names[id(parameter)] = (weakref.ref(parameter), full)
            self._name_tensor(parameter, PARAMETER, full)
        for path, buffer in root.named_buffers():
            self._name_tensor(buffer, BUFFER, f"{name}.{_describe.plain_path(root, path)}")

    def inputs_moved(self, _, inputs):
        """A wrapper has put its arguments on the device."""
        try:
            self._name_inputs(inputs)
        except Exception:
            self._complain()

    def named_again(self, owner, _):
        """A module or an optimizer whose tensors may have other storages now."""
        try:
            if not isinstance(owner, torch.nn.Module):
                if id(owner) in self._optimizers:
                    self._name_states(owner)
            elif id(owner) in self._module_ids:
                self._name_roots()
        except Exception:
            self._complain()

    def _name_roots(self):
        for reference, description in list(self._roots.values()):
            if (root := reference()) is not None:
                self.name_tensors(root, description.name)
                if description.lazy:
                    # Met before its first forward had made its parameters.
                    self._models = [m for m in self._models if m[0] is not description]
                    description.measure(root, self._described())
                    self._models.append((description, reference))
                    self._publish_models()

    def _find_models_never_called(self):
        """Averaged copies of a model, teachers that were not asked yet."""
        modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
        unknown = [m for m in modules if (known := self._module_ids.get(id(m))) is None or known[0]() is not m]
        inside = {id(child) for m in unknown for child in m.children()}
        for module in unknown:
            if id(module) not in inside and any(p.is_cuda for p in module.parameters()):
                self.name_model(module)

    def _see_trained(self):
        """Once all optimizers have been met; again where more came since."""
        if len(self._optimizers) == self._trained_by:
            return
        self._trained_by = len(self._optimizers)
        optimizers = [optimizer for names in self._optimizers.values() if (optimizer := names.reference()) is not None]
        optimized = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        changed = [description.see_trained(root, optimized) for description, reference in self._models if (root := reference()) is not None]
        if any(changed):
            self._publish_models()

    def _name_tensor(self, tensor, role, name):
        name_id = None
        for part in _parts(tensor):
            if part.is_cuda:
                storage = part.untyped_storage()
                pointer = storage.data_ptr()
                if pointer:
                    name_id = name_id or self.library.intern(name)
                    self.library.name(pointer, role, name_id, storage.nbytes())

    def _name_inputs(self, value, depth=0):
        if isinstance(value, torch.Tensor):
            # What a graph made is an activation, whatever it is fed to. Not by grad_fn: to read that makes the node a Python object, which
            # changes the order in which the graph dies.
            if value.is_cuda and value.is_leaf and not isinstance(value, torch.nn.Parameter):
                self._name_tensor(value, INPUT, "input")
        elif depth < 4:
            if isinstance(value, collections.abc.Mapping):
                value = value.values()
            elif not isinstance(value, (list, tuple)):
                return
            for item in value:
                self._name_inputs(item, depth + 1)

    def _publish_models(self):
        # A model that is gone (of an earlier round of the program) has no part in what is there now.
        self._models = [(description, reference) for description, reference in self._models if reference() is not None]
        descriptions = [description for description, _ in self._models]
        self.library.metadata({"models": [d.to_json() for d in descriptions], **_describe.common(descriptions)})

    # ---- optimizers ----

    def _before_step(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        _operators.finish()
        name_id = 0
        try:
            names = self._meet_optimizer(optimizer)
            name_id = names.id
            names.name_gradients(optimizer, self)
        except Exception:
            self._complain()
        self.library.begin_scope(PHASES["optimizer"], name_id)

    def _after_step(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        names = self._optimizers.get(id(optimizer))
        try:
            # Named while the phase lasts: what has a name is no temporary at its end.
            if names.steps < _STATE_WALK_FIRST or names.steps % _STATE_WALK_EVERY == 0:
                self._name_states(optimizer)
            names.steps += 1
            if names.steps == 1:
                self._optimizer_metadata.append(_describe.optimizer(optimizer, names.name))
                self.library.metadata({"optimizers": self._optimizer_metadata})
                self._find_models_never_called()
            elif names.steps == 2:
                self._see_trained()
        except Exception:
            self._complain()
        self.library.end_scope()
        self.library.step_done(names.id if names is not None else 0)

    def _meet_optimizer(self, optimizer):
        names = self._optimizers.get(id(optimizer))
        if names is None or names.reference() is not optimizer:
            kind = type(optimizer).__name__
            count = self._optimizer_names[kind] = self._optimizer_names.get(kind, 0) + 1
            # What was moved, replaced or made lazily since the models were met.
            self._name_roots()
            parameters = list(self._named_parameters(optimizer))
            # Where several train side by side (a GAN), whose step it is says more than its number.
            owners = {name.partition(".")[0] for _, name in parameters}
            owner = f" of {owners.pop()}" if len(owners) == 1 and self._models else ""
            names = _OptimizerNames(optimizer, f"{kind}#{count}{owner}", self.library)
            self._optimizers[id(optimizer)] = names
            for parameter, name in parameters:
                self._name_tensor(parameter, PARAMETER, name)
        return names

    def _named_parameters(self, optimizer):
        index = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known = self._parameter_names.get(id(parameter))
                named = known is not None and known[0]() is parameter
                yield parameter, known[1] if named else f"parameter.{index}"
                index += 1

    def _name_states(self, optimizer):
        names = {id(parameter): name for parameter, name in self._named_parameters(optimizer)}
        for parameter, state in optimizer.state.items():
            self._name_state(state, names.get(id(parameter), "state"))

    def _name_state(self, value, name, depth=0):
        if isinstance(value, torch.Tensor):
            self._name_tensor(value, OPTIMIZER_STATE, name)
        elif depth < 4:
            # Some keep lists (LBFGS) or dictionaries inside.
            pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
            for key, item in pairs:
                self._name_state(item, f"{name}.{key}", depth + 1)


class _OptimizerNames:
    def __init__(self, optimizer, name, library):
        self.reference = weakref.ref(optimizer)
        self.name = name
        self.id = library.intern(name)
        self.steps = 0
        self._parameters = ()  # weak, so that a model that the program has dropped is not kept alive by its names
        self._ids = ()         # string ids of their gradients' names
        self._watched = None   # the same for C++, where the library for it is there
        self._count = None

    def name_gradients(self, optimizer, hooks):
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != self._count:
            self._count = count
            pairs = list(hooks._named_parameters(optimizer))
            self._parameters = [weakref.ref(p) for p, _ in pairs]
            self._ids = [hooks.library.intern(f"{name}.grad") for _, name in pairs]
            self._watched = hooks.graph.watch([p for p, _ in pairs], self._ids) if hooks.graph is not None else None
        for index in range(count) if self._watched is None else self._watched.name_gradients():
            parameter = self._parameters[index]()
            gradient = parameter.grad if parameter is not None else None
            if gradient is not None:
                for part in _parts(gradient):
                    if part.is_cuda:
                        storage = part.untyped_storage()
                        hooks.library.name(storage.data_ptr(), GRADIENT, self._ids[index], storage.nbytes())


def _keep_from_compiler(*functions):
    """Where a compiled model calls them between its graphs, torch.compile would compile them and all that they call, as if they were the program's."""
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        for function in functions:
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except (AttributeError, TypeError):
        pass  # releases that have no such thing compile them, to no harm but time


def _is_traced():
    """Sizes are no plain numbers then, and what is done here would become part of the graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


_strided = torch.strided


def _parts(tensor):
    """The tensors with storages of their own that make up a tensor: itself, as a rule."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # what of a distributed tensor lies on this device
    if tensor.layout is _strided:
        inner = getattr(tensor, "__tensor_flatten__", None)
        if inner is None:
            return (tensor,)
        return [part for key in inner()[0] for part in _parts(getattr(tensor, key))]
    if tensor.layout is torch.sparse_coo:
        return (tensor._indices(), tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    return ()
