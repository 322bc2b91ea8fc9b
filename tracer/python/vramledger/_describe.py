"""What a model and an optimizer are, for the textbook and analytic columns: written to the trace's metadata as JSON."""

import threading

import torch

# A trace's metadata record holds 400,000 bytes; a model of more layers than this is described by its parameters alone.
_MAX_LAYERS = 600
_MAX_PARAMETERS = 2000

_local_state = threading.local()


_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def _inside(module):
    """The module in a wrapper of torch.compile or of data parallelism, with the part of a path that the wrapper adds."""
    inner = getattr(module, "_orig_mod", None)
    if isinstance(inner, torch.nn.Module):
        return inner, ""
    if isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
        return module.module, "module."
    return None, ""


def unwrapped(module):
    """The model itself, out of its wrappers."""
    while (inner := _inside(module)[0]) is not None:
        module = inner
    return module


def plain_path(root, path):
    """A path from a root without its wrappers' parts, as the script would write it."""
    path += "."
    for part in _WRAPPERS:
        path = path.replace(part, "")
    inner, part = _inside(root)
    while inner is not None:
        path = path.removeprefix(part)
        inner, part = _inside(inner)
    return path[:-1]


class RootDescription:
    """One model: names and sizes at once, shapes of its layers from its first training forward."""

    def __init__(self, root, name, described=()):
        """`described`: ids of parameters that another model has already."""
        self.name = name
        self.kind = type(unwrapped(root)).__name__
        self.complete = False
        self.batch_size = None
        self.root_batch = None      # first dimension of the model's own first argument
        self.batch_varies = False
        self.trains = False         # its forward has run in training mode, with gradients on
        self.layers = []
        self._paths = {id(module): plain_path(root, path) for path, module in root.named_modules()}
        self.measure(root, described)
        config = getattr(unwrapped(root), "config", None)
        self.config = _plain(config.to_dict()) if hasattr(config, "to_dict") else None

    def measure(self, root, described=()):
        self.lazy = any(torch.nn.parameter.is_lazy(t) for t in (*root.parameters(), *root.buffers()))
        self.parameters = [
            {"name": plain_path(root, path), "numel": p.numel(), "element_bytes": p.element_size(), "dtype": str(p.dtype).removeprefix("torch."),
             "trainable": p.requires_grad}
            for path, p in root.named_parameters()
            if id(p) not in described and not torch.nn.parameter.is_lazy(p)
        ]
        self.buffers = [
            {"name": plain_path(root, path), "numel": b.numel(), "element_bytes": b.element_size(), "dtype": str(b.dtype).removeprefix("torch.")}
            for path, b in root.named_buffers()
            if not torch.nn.parameter.is_lazy(b)
        ]

    def see_trained(self, root, optimized):
        """What no training forward has used, no optimizer has and no backward has reached (an averaged copy) gets no gradient. Whether that
        changed anything."""
        trained = {
            plain_path(root, path): p.requires_grad and (self.trains or id(p) in optimized or p.grad is not None) for path, p in root.named_parameters()
        }
        before = [parameter["trainable"] for parameter in self.parameters]
        for parameter in self.parameters:
            parameter["trainable"] = trained.get(parameter["name"], parameter["trainable"])
        return before != [parameter["trainable"] for parameter in self.parameters]

    def see(self, module, args, output):
        if self.batch_size is None and (shape := _first_shape(args)):
            self.batch_size = shape[0]
        if len(self.layers) > _MAX_LAYERS or next(module.children(), None) is not None:
            return
        path = self._paths.get(id(module))
        out = output if isinstance(output, torch.Tensor) else None
        if path is None or out is None:
            return
        layer = {"name": path, "class": type(module).__name__, "in_shape": _first_shape(args), "out_shape": list(out.shape),
                 "element_bytes": out.element_size()}
        for attribute in ("kernel_size", "stride", "padding", "dilation", "groups", "p", "eps"):
            value = getattr(module, attribute, None)
            if isinstance(value, (int, float, tuple, str)):
                layer[{"kernel_size": "kernel"}.get(attribute, attribute)] = list(value) if isinstance(value, tuple) else value
        self.layers.append(layer)

    def to_json(self):
        result = {"name": self.name, "class": self.kind, "parameter_count": sum(p["numel"] for p in self.parameters)}
        result["parameters"] = self.parameters if len(self.parameters) <= _MAX_PARAMETERS else _merged(self.parameters)
        result["buffers"] = self.buffers
        result["layers"] = self.layers if len(self.layers) <= _MAX_LAYERS else []
        if self.config is not None:
            result["config"] = self.config
        if self.batch_size is not None:
            result["batch_size"] = self.batch_size
        return result


def begin(description):
    description.layers, description.batch_size = [], None
    _local_state.description = description


def current():
    return getattr(_local_state, "description", None)


def finish():
    current().complete = True
    _local_state.description = None


def common(models):
    """Keys about the run as a whole."""
    result = {"autocast": torch.is_autocast_enabled("cuda")}
    for model in models:
        if model.batch_size is not None:
            result.setdefault("batch_size", model.batch_size)
        if model.config is not None:
            result.setdefault("config", model.config)
    return result


def optimizer(optimizer, name):
    """An optimizer after its first step: its class, settings and the keys of its state."""
    keys = []
    for state in optimizer.state.values():
        if isinstance(state, dict):
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and key not in keys:
                    keys.append(key)
    defaults = optimizer.defaults
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "name": name, "class": type(optimizer).__name__, "state_keys": keys, "foreach": defaults.get("foreach"),
        "fused": defaults.get("fused"), "momentum": defaults.get("momentum"), "param_count": sum(p.numel() for p in parameters),
        "tensor_count": len(parameters),
    }


def first_batch(args, kwargs):
    """The first dimension of the first tensor among a call's arguments, None if there is none."""
    shape = _first_shape(args) or _first_shape(list(kwargs.values()))
    return shape[0] if shape else None


def sizes(args, kwargs):
    """The batch of a call's arguments, and the sequence where they are token numbers: what the first tensor says."""
    first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.dim()), None)
    if first is None:
        return {}
    tokens = first.dim() == 2 and not first.is_floating_point()
    return {"batch": first.shape[0], **({"sequence": first.shape[1]} if tokens else {})}


def _first_shape(value):
    if isinstance(value, torch.Tensor):
        return list(value.shape) if value.dim() else None
    if isinstance(value, (list, tuple)):
        for item in value:
            if (shape := _first_shape(item)) is not None:
                return shape
    return None


def _merged(parameters):
    total = {}
    for p in parameters:
        key = (p["element_bytes"], p["dtype"], p["trainable"])
        total[key] = total.get(key, 0) + p["numel"]
    return [{"name": f"all of {key[1]}", "numel": n, "element_bytes": key[0], "dtype": key[1], "trainable": key[2]} for key, n in total.items()]


def _plain(value):
    """Only what JSON has, and no long lists (label maps of large vocabularies)."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if len(value) <= 200}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value[:50]]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
