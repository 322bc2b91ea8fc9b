"""Turns the device trace of a PyTorch memory snapshot into the replay format of README.md.

    python3 from_snapshot.py SNAPSHOT.pickle[.gz] [DEVICE] > OUT.txt

Executes nothing from the pickle: anything but plain data is refused.
"""

import gzip
import pickle
import sys


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"refused: {module}.{name}")


LETTERS = {
    "segment_alloc": "S",
    "segment_free": "F",
    "segment_map": "M",
    "segment_unmap": "U",
    "alloc": "A",
    "free_requested": "R",
    "free_completed": "C",
    "oom": "O",
}


def lines(trace):
    events = [e for e in trace if e["action"] in LETTERS]
    skip = False
    for event, after in zip(events, events[1:] + [None]):
        letter = LETTERS[event["action"]]
        if skip:
            skip = False
            continue
        # A free that completes at once is one line.
        if letter == "R" and after and after["action"] == "free_completed" and after["addr"] == event["addr"]:
            letter = "D"
            skip = True
        address = event["addr"] if "addr" in event else event.get("device_free", 0)
        yield f"{letter} {address:x} {event['size']} {event['stream']}"


def main():
    path = sys.argv[1]
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
        snapshot = PlainUnpickler(f).load()
    device = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print("\n".join(lines(snapshot["device_traces"][device])))


if __name__ == "__main__":
    main()
