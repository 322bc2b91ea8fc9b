"""What `python -m vramledger run` does for its own process and for those that multiprocessing starts from it."""

import os
import sys
from pathlib import Path

from ._install import TraceError, install_with


def say(sentence):
    print(f"vramledger: {sentence}", file=sys.stderr, flush=True)


_DEVICE_REPORT = "VRAMLEDGER_VIRTUAL_DEVICE_REPORT"


def device_report_is_open():
    """There is a virtual device, and nobody has said where its summary goes."""
    return "VRAMLEDGER_VIRTUAL_DEVICE" in os.environ and _DEVICE_REPORT not in os.environ


def name_device_report(trace):
    """A virtual device writes its summary beside the trace; it reads the name at the first CUDA call, so before PyTorch is imported."""
    os.environ.pop(_DEVICE_REPORT, None)
    try:
        report = os.path.abspath(f"{trace}.device.json")
        # One of an earlier run must not be taken for this one's, and the device never overwrites one.
        Path(report).unlink(missing_ok=True)
    except OSError as error:
        say(f"{error}; the virtual device writes no summary")
        return
    os.environ[_DEVICE_REPORT] = report


def install_or_less(trace, **options):
    try:
        return install_with(trace, **options)
    except TraceError as error:
        say(f"{error}; the script runs without a trace")
        return install_with(None, **options)
