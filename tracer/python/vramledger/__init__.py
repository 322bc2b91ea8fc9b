"""vramledger: a CUDA allocator for PyTorch that accounts for every byte.

    python -m vramledger run train.py          no change in the script
    vramledger.install(trace="run.vlt")        or first thing in it, before CUDA is used
"""

from ._estimate import EstimateError, estimate
from ._install import InstallError, attach, close, install, installed, phase, summary
from ._monitor import Monitor, Record

__version__ = "0.1.0"
__all__ = ["EstimateError", "InstallError", "Monitor", "Record", "attach", "close", "estimate", "install", "installed", "phase", "summary"]
