"""Host time of a training step on the virtual device, with our allocator and trace and without: step_time.py VRAMLEDGER PYTHON FOLDER > STEPS.json.

Runs alternate; a run's figure is the lower quartile of its steps after the second (other work on the machine only adds), the ratio
the median over pairs of runs. Progress goes to standard error.
"""

import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS = 60
RUNS = int(os.environ.get("RUNS", "5"))
MODELS = {"BERT-base, batch 32": ["bert.py", "--batch", "32"], "ResNet-50, batch 32": ["resnet50.py", "--batch", "32"]}


def step_ms(tool, python, script, allocator, folder):
    command = [tool, "dryrun", "--device", "h100-80gb", "--allocator", allocator]
    if allocator != "native":
        command += ["--trace", os.path.join(folder, "step.vlt")]
    command += ["--", python, "-u", os.path.join(ROOT, "tools", "examples", script[0]), *script[1:], "--steps", str(STEPS)]
    times = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step "):
                times.append(time.perf_counter())
    if process.returncode != 0 or len(times) != STEPS:
        sys.exit(f"{' '.join(command)} failed")
    return 1000 * statistics.quantiles([b - a for a, b in zip(times[1:], times[2:])], n=4)[0]


def main():
    tool, python, folder = sys.argv[1:4]
    rows = []
    for model, script in MODELS.items():
        times = {"native": [], "torch": [], "plugin": []}
        for _ in range(RUNS):
            for mode, taken in times.items():
                taken.append(step_ms(tool, python, script, mode, folder))
            print(f"{model}: " + ", ".join(f"{mode} {taken[-1]:.2f} ms" for mode, taken in times.items()), file=sys.stderr)
        for mode in ("torch", "plugin"):
            ratio = statistics.median(b / a for a, b in zip(times["native"], times[mode]))
            rows.append({"model": model, "mode": mode, "native_ms": statistics.median(times["native"]), "traced_ms": statistics.median(times[mode]),
                         "ratio": ratio, "runs": RUNS})
    json.dump(rows, sys.stdout, indent=1)


main()
