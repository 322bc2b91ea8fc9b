"""Named records of memory in use, as people write them by hand."""

import sys
from dataclasses import dataclass, field

from ._install import mebibytes, require


@dataclass(frozen=True)
class Record:
    """Bytes in use when `name` was recorded."""

    name: str
    phase: str
    step: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    categories: dict = field(default_factory=dict)  # category -> bytes now


class Monitor:
    """Records allocated, reserved and per-category bytes under a name; prints each and keeps all in `records`.

        monitor = vramledger.Monitor()
        loss = model(x).sum()
        monitor.record("after forward")
    """

    def __init__(self, device=0, file=None, quiet=False):
        self.device = device
        self.records = []
        self._file = file
        self._quiet = quiet
        self._library = require()

    def record(self, name):
        statistics = self._library.statistics()
        entry = next((d for d in statistics["devices"] if d["device"] == self.device), None)
        categories = {c: s["current_bytes"] for c, s in entry["categories"].items() if s["current_bytes"]} if entry else {}
        record = Record(
            name=name, phase=statistics["phase"], step=statistics["steps"],
            allocated_bytes=entry["allocated_bytes"] if entry else 0, reserved_bytes=entry["reserved_bytes"] if entry else 0,
            peak_allocated_bytes=entry["peak_allocated_bytes"] if entry else 0, categories=categories,
        )
        self.records.append(record)
        self._library.mark(name)
        if not self._quiet:
            parts = ", ".join(f"{c} {mebibytes(b)}" for c, b in sorted(categories.items(), key=lambda item: -item[1]))
            print(f"[{name}] allocated {mebibytes(record.allocated_bytes)} MiB, reserved {mebibytes(record.reserved_bytes)} MiB ({parts})",
                  file=self._file or sys.stdout, flush=True)
        return record
