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
    for i, event in enumerate(trace):
        letter = LETTERS.get(event["action"])
        if letter is None:
            continue
        # A free that completes at once is one line.
        if letter == "C" and i > 0 and trace[i - 1]["action"] == "free_requested" and trace[i - 1]["addr"] == event["addr"]:
            continue
        yield f"{letter} {event['addr']:x} {event['size']} {event['stream']}"


def main():
    path = sys.argv[1]
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
        snapshot = PlainUnpickler(f).load()
    device = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print("\n".join(lines(snapshot["device_traces"][device])))


if __name__ == "__main__":
    main()
