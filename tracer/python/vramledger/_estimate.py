"""`vramledger.estimate`: the memory of a training step of a live module, with no GPU and without running it for real."""

import concurrent.futures
import contextlib
import copy
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class EstimateError(RuntimeError):
    """The module cannot be recorded, or the tool is missing or declines; the message is one sentence."""


def tool_path():
    """Where the command-line tool is: $VRAMLEDGER_TOOL, in the source tree's build folder, or on PATH."""
    named = os.environ.get("VRAMLEDGER_TOOL")
    if named:
        return named
    built = Path(__file__).resolve().parents[3] / "build" / "bin" / "vramledger"
    found = str(built) if built.is_file() else shutil.which("vramledger")
    if found is None:
        raise EstimateError(f"the tool vramledger was not found (looked at {built} and on PATH); build it, or set VRAMLEDGER_TOOL")
    return found


def _to_meta(module, inputs):
    """Copies of both on the meta device, which has shapes and no memory. No tensor's bytes are read or copied."""
    import torch

    def meta(tensor):
        like = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(like, requires_grad=tensor.requires_grad)
        return like.requires_grad_(tensor.requires_grad) if tensor.is_leaf else like

    # What deepcopy finds here it takes instead of copying. Tensors in plain attributes count too.
    attributes = (value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor))
    memo = {}
    for tensor in itertools.chain(module.parameters(), module.buffers(), attributes):
        if id(tensor) not in memo:
            memo[id(tensor)] = meta(tensor)

    def walk(value):
        if isinstance(value, torch.Tensor):
            return meta(value)
        if isinstance(value, dict):
            return type(value)((key, walk(part)) for key, part in value.items())
        if isinstance(value, (list, tuple)):
            parts = [walk(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    return copy.deepcopy(module, memo), walk(inputs)


def _on_another_thread(function):
    """With this thread's autocast, grad mode and default device. A graph made on this one would count as a forward of the training: phases follow the
    numbers that autograd gives to a thread's nodes."""
    import torch

    autocast = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu")}
    grad = torch.is_grad_enabled()
    device = torch.get_default_device()

    def run():
        with contextlib.ExitStack() as stack:
            if device != torch.device("cpu"):
                stack.enter_context(device)
            for kind, (enabled, dtype) in autocast.items():
                if enabled:
                    stack.enter_context(torch.autocast(kind, dtype))
            stack.enter_context(torch.set_grad_enabled(grad))
            return function()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def estimate(module, example_inputs, **settings):
    """The memory of one training step of `module` on `example_inputs`, as the dictionary of `vramledger estimate --json`.

    `example_inputs`: a tensor, a tuple of positional arguments, or a dictionary of named ones; only their shapes and types
    matter, and not the device that they or the module are on. A mask of dropout counts four bytes an element, as the meta device
    makes it; CUDA's has one. `settings` are the command's options with underscores: optimizer="sgd", checkpoint="all",
    data_parallel=8, fsdp=True; the batch is that of the inputs. Sizes are in bytes. The module is left as it is; its training mode
    and an autocast region in effect count.
    Raises EstimateError. Thread rule: one call at a time in a process.
    """
    from . import _operators

    if isinstance(example_inputs, dict):
        args, kwargs = (), example_inputs
    elif isinstance(example_inputs, (list, tuple)):
        args, kwargs = tuple(example_inputs), {}
    else:
        args, kwargs = (example_inputs,), {}
    try:
        on_meta, (args, kwargs) = _to_meta(module, (args, kwargs))
        operators = _on_another_thread(lambda: _operators.record(on_meta, args, kwargs))
    except Exception as error:
        raise EstimateError(f"{type(module).__name__} cannot be run on the meta device: {error}") from error
    operators.setdefault("name", type(module).__name__)
    options = []
    for key, value in settings.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            options.append(flag)
        elif value is not False and value is not None:
            options += [flag, str(value)]
    with tempfile.TemporaryDirectory(prefix="vramledger-") as folder:
        path = Path(folder) / "operators.json"
        path.write_text(json.dumps(operators))
        done = subprocess.run([tool_path(), "estimate", str(path), "--json", *options], capture_output=True, text=True)
    if done.returncode != 0:
        # The parser of options adds where to look for help.
        lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("Run with --help")]
        raise EstimateError(lines[-1] if lines else f"the tool ended with {done.returncode}")
    return json.loads(done.stdout)
