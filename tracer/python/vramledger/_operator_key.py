"""A place in PyTorch's dispatcher where every operator of one thread can be seen, without a change to what runs."""

import torch

active = None  # the recorder that sees the operators


# Note [No dispatch mode]
# A TorchDispatchMode would change the run: under any mode some of PyTorch's composite functions take other ways (a linear layer on a
# transposed input then adds its bias into a new tensor). So the recorder stands at a dispatch key that PyTorch keeps for tests of such
# observers and that nothing else uses; it lies above autograd and autocast, and is switched on for one thread by including it.
_KEY_NAME = "TESTING_ONLY_GenericMode"


class Key:
    """The dispatch key, with kernels that hand every operator to the recorder. Made once, when first needed: some 50 ms."""

    made = None

    def __init__(self):
        self.key = torch._C._dispatch_key_parse(_KEY_NAME)
        self.after = torch._C._dispatch_keyset_full_after(self.key)
        # One kernel for each operator and not one fallback for all: beside dispatch modes and tensor subclasses PyTorch finds no fallback
        # that is a Python function. What has no kernel here passes by, and what it is made of is seen.
        everything = torch.library.Library("_", "IMPL")
        everything.fallback(torch.library.fallthrough_kernel, _KEY_NAME)
        self._libraries = {"_": everything}
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        for name in torch._C._dispatch_get_all_op_names():
            namespace, _, rest = name.partition("::")
            if namespace in _NOT_SEEN_SPACES or rest in _NOT_SEEN or "out" in rest.partition(".")[2] or "backward" in rest:
                continue
            if not torch._C._dispatch_has_kernel(name) or has_kernel(name, "CompositeImplicitAutograd"):
                continue
            library = self._libraries.get(namespace)
            if library is None:
                library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL", _KEY_NAME)
            library.impl(rest, _Kernel(name), with_keyset=True)

    @classmethod
    def get(cls):
        cls.made = cls.made or cls()
        return cls.made

    def include(self, yes):
        torch._C._dispatch_tls_set_dispatch_key_included(self.key, yes)

    def exclude(self, yes):
        torch._C._dispatch_tls_set_dispatch_key_excluded(self.key, yes)


# Views that PyTorch makes to give a tensor another Python type (a Parameter): they must not have a Python object yet.
_NOT_SEEN = ("detach", "alias")
_NOT_SEEN_SPACES = ("prim", "prims", "onnx_symbolic", "quantized")


class _Kernel:
    """Of one operator, which is looked up when it is first called."""

    def __init__(self, name):
        self.name = name
        self.func = self.signature = None

    def __call__(self, keyset, *args, **kwargs):
        if self.func is None:
            namespace, _, rest = self.name.partition("::")
            base, _, overload = rest.partition(".")
            self.func = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
            self.signature = _Signature(self.func)
        recorder = active
        if recorder is None or not recorder.recording:
            return run_unseen(self.func, args, kwargs)
        return recorder.see(keyset, self.func, self.signature, args, kwargs)


def run_unseen(func, args, kwargs):
    """Runs an operator unseen, with all that it calls."""
    key = Key.made
    key.exclude(True)
    try:
        return func(*args, **kwargs)
    finally:
        key.exclude(False)


class _Signature:
    """What the recorder needs to know of an operator."""

    def __init__(self, func):
        arguments = func._schema.arguments
        self.name = func._schema.name if func._overloadname == "default" else f"{func._schema.name}.{func._overloadname}"
        self.tensors = [(i, a.name) for i, a in enumerate(arguments) if "Tensor" in str(a.type)]
        self.takes_storage = any(str(a.type) == "Storage" for a in arguments)  # set_
        self.mutable = func._schema.is_mutable
        self.in_place = self.mutable and func._schema.name.endswith("_") and bool(self.tensors) and self.tensors[0][0] == 0
        self.casts = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutocastCUDA")
