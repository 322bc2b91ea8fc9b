"""Runs a child process of this Python on the virtual device.

    result = virtual_device.run("import torch; print(torch.cuda.memory_reserved())", device="rtx-4090", memory=8 << 30)
    result.stdout, result.stderr, result.returncode, result.summary

The stand-ins are those of VRAMLEDGER_VIRTUAL_DEVICE_DIR, or of the build folder (VRAMLEDGER_BUILD, default build/).
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VRAMLEDGER_BUILD", ROOT / "build")).resolve()
FOLDER = Path(os.environ.get("VRAMLEDGER_VIRTUAL_DEVICE_DIR", BUILD / "lib" / "virtual_device")).resolve()
TOOL = BUILD / "bin" / "vramledger"


class Result(NamedTuple):
    stdout: str
    stderr: str
    returncode: int
    summary: Optional[dict]   # what the device wrote at exit; None when the process made no CUDA call


def environment(device="h100-80gb", memory=None, devices=1, address_order="up", delay_seed=None, report=None, **more):
    """The variables that put a process on the virtual device. MEMORY in bytes."""
    libraries = sorted(str(p) for p in FOLDER.glob("lib*.so*"))
    if not libraries:
        raise RuntimeError(f"there are no stand-ins in {FOLDER}: build the project, or set VRAMLEDGER_BUILD")
    values = {
        "LD_PRELOAD": ":".join(libraries),
        "TRITON_LIBCUDA_PATH": str(FOLDER),
        "VRAMLEDGER_VIRTUAL_DEVICE": device,
        "VRAMLEDGER_VIRTUAL_DEVICE_COUNT": str(devices),
        "VRAMLEDGER_VIRTUAL_DEVICE_ADDRESS_ORDER": address_order,
    }
    if memory is not None:
        values["VRAMLEDGER_VIRTUAL_DEVICE_MEMORY"] = str(memory)
    if delay_seed is not None:
        values["VRAMLEDGER_VIRTUAL_DEVICE_DELAY_SEED"] = str(delay_seed)
    if report is not None:
        values["VRAMLEDGER_VIRTUAL_DEVICE_REPORT"] = str(report)
    inherited = {k: v for k, v in os.environ.items()
                 if not k.startswith(("VRAMLEDGER_VIRTUAL_DEVICE", "PYTORCH_")) and k != "CUDA_VISIBLE_DEVICES"}
    return {**inherited, **values, **more}


def run(script, *arguments, check=True, timeout=300, env=None, **device):
    """SCRIPT is Python source, or a Path. DEVICE: the parameters of environment(); ENV: further variables."""
    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(script, Path):
            path = Path(folder) / "script.py"
            path.write_text(textwrap.dedent(script))
        else:
            path = script
        report = Path(folder) / "device.json"
        done = subprocess.run([sys.executable, str(path), *map(str, arguments)], capture_output=True, text=True,
                              timeout=timeout, env=environment(report=report, **device, **(env or {})))
        summary = json.loads(report.read_text()) if report.exists() else None
    if check and done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return Result(done.stdout, done.stderr, done.returncode, summary)
