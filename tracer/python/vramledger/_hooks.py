"""PyTorch's global module and optimizer hooks, which tell the allocator what the program is doing and what each storage holds.

Nothing here needs a call from the training script. All names are found by walking modules and optimizers.
"""

import functools
import sys
import weakref

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _describe
from ._library import BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, PHASES

# Optimizer states are walked at the first steps, when they appear, and then now and again for optimizers that replace them.
_STATE_WALK_FIRST = 2
_STATE_WALK_EVERY = 100


class Hooks:
    """One per process. Thread rule: hooks run on whichever thread runs the module or optimizer."""

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
        self._handles = []

    def attach(self):
        module = torch.nn.modules.module
        self._handles = [
            module.register_module_forward_pre_hook(self._before_forward),
            # Without always_call the early stop of checkpointing would skip the hook and leave the module on the stack.
            module.register_module_forward_hook(self._after_forward, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        for owner in (Optimizer, torch.nn.Module):
            _wrap_zero_grad(owner, self.library)
        self.library.hooks_active(1)

    # ---- modules ----

    def _before_forward(self, module, args):
        if torch.compiler.is_compiling():
            return
        known = self._module_ids.get(id(module))
        if known is None or known[0]() is not module:
            known = self._meet_module(module)
        library = self.library
        if library.module_depth() == 0:
            self._enter_root(module, args)
        library.enter_module(known[1], module.training)

    def _after_forward(self, module, args, output):
        if torch.compiler.is_compiling():
            return
        library = self.library
        library.exit_module()
        describing = _describe.current()
        if describing is not None:
            describing.see(module, args, output)
            if library.module_depth() == 0:
                _describe.finish()
                self._publish_models()

    def _meet_module(self, module):
        """A module not seen before: name it and all below it from here."""
        if self.library.module_depth() == 0:
            self.name_model(module)
        else:
            self._module_ids[id(module)] = (weakref.ref(module), self.library.intern(type(module).__name__))
        return self._module_ids[id(module)]

    def _enter_root(self, module, args):
        known = self._roots.get(id(module))
        if known is None or known[0]() is not module:
            if id(module) not in self._module_ids or not self._is_part_of_a_root(module):
                self.name_model(module)
        known = self._roots.get(id(module))
        if known is not None and module.training and not known[1].complete and torch.is_grad_enabled():
            _describe.begin(known[1])
        # _call_impl's frame has the keyword arguments, which the global hook is not given.
        kwargs = sys._getframe(2).f_locals.get("kwargs") or {}
        self._name_inputs((args, kwargs))

    def _is_part_of_a_root(self, module):
        return any(reference() is not None and any(m is module for m in reference().modules()) for reference, _ in self._roots.values())

    def name_model(self, root, name=None):
        """Names the modules, parameters and buffers of a root module. Called at its first forward, or by attach()."""
        if name is None:
            kind = type(root).__name__
            count = self._root_names[kind] = self._root_names.get(kind, 0) + 1
            name = kind if count == 1 else f"{kind}#{count}"
        library = self.library
        for path, module in root.named_modules():
            full = f"{name}.{path}" if path else name
            self._module_ids[id(module)] = (weakref.ref(module), library.intern(full))
        description = _describe.RootDescription(root, name)
        self._roots[id(root)] = (weakref.ref(root), description)
        # A loss function called on its own is a root too, but no model.
        if description.parameters or description.buffers:
            self._models.append(description)
            self.name_tensors(root, name)
            self._publish_models()

    def name_tensors(self, root, name):
        """Tells what the storages of the parameters and buffers hold. Cheap enough to be repeated after a move to the device."""
        for path, parameter in root.named_parameters():
            self._parameter_names[id(parameter)] = (weakref.ref(parameter), f"{name}.{path}")
            self._name_tensor(parameter, PARAMETER, f"{name}.{path}")
        for path, buffer in root.named_buffers():
            self._name_tensor(buffer, BUFFER, f"{name}.{path}")

    def _name_tensor(self, tensor, role, name):
        tensor = _local(tensor)
        if not tensor.is_cuda:
            return
        storage = tensor.untyped_storage()
        pointer = storage.data_ptr()
        if pointer:
            self.library.name(pointer, role, self.library.intern(name), storage.nbytes())

    def _name_inputs(self, value, depth=0):
        if isinstance(value, torch.Tensor):
            # What a graph made is an activation, whatever it is fed to.
            if value.is_cuda and value.grad_fn is None and not isinstance(value, torch.nn.Parameter):
                self._name_tensor(value, INPUT, "input")
        elif depth < 4:
            if hasattr(value, "values") and hasattr(value, "keys"):
                value = value.values()
            elif not isinstance(value, (list, tuple)):
                return
            for item in value:
                self._name_inputs(item, depth + 1)

    def _publish_models(self):
        models = [description.to_json() for description in self._models]
        self.library.metadata({"models": models, **_describe.common(self._models)})

    # ---- optimizers ----

    def _before_step(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        names = self._meet_optimizer(optimizer)
        for reference, name_id in names.parameters(optimizer, self):
            parameter = reference()
            gradient = parameter.grad if parameter is not None else None
            if gradient is not None:
                gradient = _local(gradient)
                if gradient.is_cuda:
                    storage = gradient.untyped_storage()
                    self.library.name(storage.data_ptr(), GRADIENT, name_id, storage.nbytes())
        self.library.begin_scope(PHASES["optimizer"], names.id)

    def _after_step(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        names = self._optimizers[id(optimizer)]
        # Named while the phase lasts: what has a name is no temporary at its end.
        if names.steps < _STATE_WALK_FIRST or names.steps % _STATE_WALK_EVERY == 0:
            self._name_states(optimizer)
        names.steps += 1
        self.library.end_scope()
        self.library.step_done(names.id)
        if names.steps == 1:
            self._optimizer_metadata.append(_describe.optimizer(optimizer, names.name))
            self.library.metadata({"optimizers": self._optimizer_metadata})

    def _meet_optimizer(self, optimizer):
        names = self._optimizers.get(id(optimizer))
        if names is None or names.reference() is not optimizer:
            kind = type(optimizer).__name__
            count = self._optimizer_names[kind] = self._optimizer_names.get(kind, 0) + 1
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
            if not isinstance(state, dict):
                continue
            owner = names.get(id(parameter), "state")
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self._name_tensor(value, OPTIMIZER_STATE, f"{owner}.{key}")


class _OptimizerNames:
    def __init__(self, optimizer, name, library):
        self.reference = weakref.ref(optimizer)
        self.name = name
        self.id = library.intern(name)
        self.steps = 0
        self._parameters = None
        self._count = 0

    def parameters(self, optimizer, hooks):
        """Weak references to the parameters, with the string ids of their gradients' names."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if self._parameters is None or count != self._count:
            self._count = count
            # Weak, so that a model that the program has dropped is not kept alive by its names.
            self._parameters = [(weakref.ref(p), hooks.library.intern(f"{name}.grad")) for p, name in hooks._named_parameters(optimizer)]
        return self._parameters


def _local(tensor):
    """The part of a distributed tensor that lies on this device."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def _wrap_zero_grad(owner, library):
    original = owner.zero_grad

    @functools.wraps(original)
    def zero_grad(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        library.begin_scope(PHASES["zero_grad"], 0)
        try:
            return original(self, *args, **kwargs)
        finally:
            library.end_scope()

    owner.zero_grad = zero_grad
