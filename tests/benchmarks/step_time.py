"""Host time of a training step on the virtual device, with our allocator and trace and without: step_time.py VRAMLEDGER PYTHON FOLDER NATIVE_PLUGIN > STEPS.json.

The machine and its host change speed by half for seconds on end, so that runs one after the other compare the host with itself. Here the
processes stand side by side and take turns of three steps, in an order drawn anew each round; all wait but that one. The first step of a
turn brings the process's data back into the caches and is not counted in wall time. PyTorch's own allocator has two processes: the mean
of both is what the others are compared with, and `control`, one by the other, says what cannot be told apart here. `interface` is PyTorch's
own allocator too, reached through PyTorch's plug-in interface (NATIVE_PLUGIN, built of native_plugin.cc): what mode plugin pays for that
interface, with nothing of ours in it. Wall time: the median
of the rounds' own ratios. Processor time: that of all threads of a process over all its rounds, compression of the trace included. A set
of fresh processes gives one ratio of each, and the result is the median over the sets with their range. Progress goes to standard error.
"""

import json
import os
import random
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TURN, UNCOUNTED = 3, 1  # steps
WARM_UP = 2             # turns: optimizer states and caches come into being in the first steps
ROUNDS = int(os.environ.get("ROUNDS", "60"))
SETS = int(os.environ.get("RUNS", "9"))
STEPS = 1 + (WARM_UP + ROUNDS) * TURN
MODELS = {"BERT-base, batch 32": ["bert.py", "--batch", "32"], "ResNet-50, batch 32": ["resnet50.py", "--batch", "32"]}
MODES = {"native": "native", "control": "native", "interface": "native", "torch": "torch", "plugin": "plugin"}
BOTH = "both native"
COMPARISONS = [("control", "native"), ("interface", BOTH), ("torch", BOTH), ("plugin", BOTH), ("plugin", "interface")]
# After the first step and then after each turn: waits until the process's other threads (the compression of the trace) have done their
# work, which would else fall into the turn of another; says the wall time of the turn's counted steps and the process's processor time so
# far, both in ns; and waits for a byte.
RUNNER = f"""
import builtins, os, runpy, sys, time
show = builtins.print
ends = []
def step_ended(*words, **options):
    if not (words and str(words[0]).startswith("step ")):
        return show(*words, **options)
    ends.append(time.perf_counter_ns())
    if len(ends) % {TURN} == 1:
        counted = ends[-1] - ends[-1 - {TURN - UNCOUNTED}] if len(ends) > 1 else 0
        for _ in range(100):
            before = time.process_time_ns()
            time.sleep(0.001)
            if time.process_time_ns() - before < 200_000:
                break
        show("turn", counted, time.process_time_ns(), flush=True)
        os.read(0, 1)
builtins.print = step_ended
if library := os.environ.get("NATIVE_PLUGIN"):
    import ctypes, torch
    plugin = torch.cuda.memory.CUDAPluggableAllocator(library, "native_malloc", "native_free")
    plugin.allocator().set_init_fn(ctypes.cast(ctypes.CDLL(library).native_init, ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(plugin)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
if len(ends) != {STEPS}:
    sys.exit(f"{{len(ends)}} lines begin with 'step ', not {STEPS}")
"""


class Trainee:
    started = []

    def __init__(self, tool, python, script, mode, folder, native_plugin):
        command = [tool, "dryrun", "--device", "h100-80gb", "--allocator", MODES[mode]]
        if MODES[mode] != "native":
            command += ["--trace", os.path.join(folder, f"step_{mode}.vlt")]
        runner = os.path.join(folder, "runner.py")
        with open(runner, "w") as file:
            file.write(RUNNER)
        command += ["--", python, runner, os.path.join(ROOT, "tools", "examples", script[0]), *script[1:], "--steps", str(STEPS)]
        self.command = " ".join(command)
        environment = {**os.environ, "NATIVE_PLUGIN": native_plugin if mode == "interface" else ""}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        Trainee.started.append(self.process)
        self.read()

    def read(self):
        for line in self.process.stdout:
            if line.startswith(b"turn "):
                counted, self.processor_ns = map(int, line.split()[1:])
                return counted / 1e6 / (TURN - UNCOUNTED)
        sys.exit(f"{self.command} ended before its time")

    def turn(self):
        """ms of wall time a step."""
        self.process.stdin.write(b"g")
        self.process.stdin.flush()
        return self.read()

    @classmethod
    def end_all(cls):
        """Of those that still wait for their turn when another one has failed."""
        for process in cls.started:
            if process.poll() is None:
                process.terminate()
                process.wait()

    def end(self):
        self.process.stdin.close()
        self.process.stdout.read()
        if self.process.wait() != 0:
            sys.exit(f"{self.command} failed")


def one_set(tool, python, script, folder, native_plugin):
    """For each comparison: processor and wall time a step of both, and their ratios."""
    trainees = {mode: Trainee(tool, python, script, mode, folder, native_plugin) for mode in MODES}
    order = list(trainees)
    wall = {mode: [] for mode in MODES}
    for number in range(WARM_UP + ROUNDS):
        if number == WARM_UP:
            begun = {mode: trainee.processor_ns for mode, trainee in trainees.items()}
            wall = {mode: [] for mode in MODES}
        random.shuffle(order)
        for mode in order:
            wall[mode].append(trainees[mode].turn())
    processor = {mode: (trainee.processor_ns - begun[mode]) / 1e6 / (ROUNDS * TURN) for mode, trainee in trainees.items()}
    for trainee in trainees.values():
        trainee.end()
    wall[BOTH] = [(a + b) / 2 for a, b in zip(wall["native"], wall["control"])]
    processor[BOTH] = (processor["native"] + processor["control"]) / 2
    return {(mode, base): {"wall": {"ms": statistics.median(wall[mode]), "base_ms": statistics.median(wall[base]),
                                    "ratio": statistics.median(ours / theirs for ours, theirs in zip(wall[mode], wall[base]))},
                           "processor": {"ms": processor[mode], "base_ms": processor[base], "ratio": processor[mode] / processor[base]}} for mode, base in COMPARISONS}


def main():
    tool, python, folder, native_plugin = sys.argv[1:5]
    random.seed(1)
    rows = []
    for model, script in MODELS.items():
        sets = []
        for _ in range(SETS):
            sets.append(one_set(tool, python, script, folder, native_plugin))
            print(f"{model}: " + ", ".join(f"{mode} by {base} {taken['wall']['ms']:.2f} ms x{taken['wall']['ratio']:.4f} (processor {taken['processor']['ms']:.2f} x{taken['processor']['ratio']:.4f})" for (mode, base), taken in sets[-1].items()), file=sys.stderr)
        for mode, base in COMPARISONS:
            row = {"model": model, "mode": mode, "base": base, "sets": SETS, "steps": ROUNDS * TURN}
            for name in ("processor", "wall"):
                taken = [one[mode, base][name] for one in sets]
                ratios = [one["ratio"] for one in taken]
                row[name] = {which: statistics.median(one[which] for one in taken) for which in ("base_ms", "ms")}
                row[name] |= {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
            rows.append(row)
    json.dump(rows, sys.stdout, indent=1)


try:
    main()
finally:
    Trainee.end_all()
