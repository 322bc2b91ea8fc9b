"""Host time of a training step on the virtual device, with our allocator and trace and without: step_time.py VRAMLEDGER PYTHON FOLDER > STEPS.json.

Processor time of all threads of the process, compression of the trace included, and wall time. Runs alternate; a run's figure is the
lower quartile of its steps after the second, a mode's the smallest of its runs: what else the machine and its host do only adds, up to
half as much again for seconds on end, so that medians of pairs say more of the host. Progress goes to standard error.
"""

import glob
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS = int(os.environ.get("STEPS", "60"))
RUNS = int(os.environ.get("RUNS", "5"))
MODELS = {"BERT-base, batch 32": ["bert.py", "--batch", "32"], "ResNet-50, batch 32": ["resnet50.py", "--batch", "32"]}


def processor_ns(pid):
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                total += int(file.read().split()[0])
        except OSError:
            pass  # the thread has ended
    return total


def step_ms(tool, python, script, allocator, folder):
    """Lower quartiles of a run's steps, in ms: processor time, wall time."""
    command = [tool, "dryrun", "--device", "h100-80gb", "--allocator", allocator]
    if allocator != "native":
        command += ["--trace", os.path.join(folder, "step.vlt")]
    # The tool may stay as the parent of what it runs, so the script says itself which process it is.
    runner = os.path.join(folder, "say_pid.py")
    with open(runner, "w") as file:
        file.write("import os, runpy, sys\nprint('pid', os.getpid())\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n")
    command += ["--", python, "-u", runner, os.path.join(ROOT, "tools", "examples", script[0]), *script[1:], "--steps", str(STEPS)]
    wall, processor, pid = [], [], None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("pid "):
                pid = int(line.split()[1])
            elif line.startswith("step "):
                wall.append(1000 * time.perf_counter())
                processor.append(processor_ns(pid) / 1e6)
    if process.returncode != 0 or len(wall) != STEPS:
        sys.exit(f"{' '.join(command)} failed")
    if processor[-1] == 0:
        sys.exit("this kernel keeps no /proc/PID/task/TID/schedstat, so processor time is not known")
    return tuple(statistics.quantiles([b - a for a, b in zip(moments[1:], moments[2:])], n=4)[0] for moments in (processor, wall))


def main():
    tool, python, folder = sys.argv[1:4]
    rows = []
    for model, script in MODELS.items():
        times = {"native": [], "torch": [], "plugin": []}
        for _ in range(RUNS):
            for mode, taken in times.items():
                taken.append(step_ms(tool, python, script, mode, folder))
            print(f"{model}: " + ", ".join(f"{mode} {taken[-1][0]:.2f} ms (wall {taken[-1][1]:.2f})" for mode, taken in times.items()), file=sys.stderr)
        for mode in ("torch", "plugin"):
            row = {"model": model, "mode": mode, "runs": RUNS}
            for which, name in enumerate(("processor", "wall")):
                native, traced = (min(t[which] for t in times[kind]) for kind in ("native", mode))
                row[name] = {"native_ms": native, "traced_ms": traced, "ratio": traced / native}
            rows.append(row)
    json.dump(rows, sys.stdout, indent=1)


main()
