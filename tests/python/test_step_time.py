"""The benchmark's driver, with scripts in the place of the tool, of the interpreter and of the models."""

import json
import os
import sys

import pytest
from conftest import ROOT

TOOL = """#!/bin/sh
while [ "$1" != -- ]; do [ "$1" = --allocator ] && export MODE="$2"; shift; done
shift
echo "$$" >> pids
exec "$@"
"""
PYTHON = f"""#!/bin/sh
runner="$1"
shift 2
[ -n "$NATIVE_PLUGIN" ] && echo "$NATIVE_PLUGIN" >> plugins
unset NATIVE_PLUGIN  # there is no PyTorch here
exec {sys.executable} "$runner" model.py "$@"
"""
MODEL = """
import os, sys
print("no step of the model's")
for step in range(int(sys.argv[sys.argv.index("--steps") + 1])):
    sum(range(50_000))  # the processor's time is told in ticks by some machines
    print(f"step {step + 1} done")
    print("loss", 1.0)
    if step == 4 and os.environ["MODE"] == os.environ.get("FAILS"):
        sys.exit("no more")
if os.environ["MODE"] == os.environ.get("ADDS"):
    print("step too many")
"""


def measure(bench, **env):
    for name, text in (("tool", TOOL), ("python", PYTHON), ("model.py", MODEL)):
        (bench.folder / name).write_text(text)
        (bench.folder / name).chmod(0o755)
    command = [sys.executable, ROOT / "tests" / "benchmarks" / "step_time.py", bench.folder / "tool", bench.folder / "python", bench.folder, bench.folder / "plugin"]
    done = bench.run(command, env={"ROUNDS": "2", "RUNS": "1", **env}, check=False, timeout=60)
    for pid in (bench.folder / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    return done


def test_only_lines_of_steps_count(bench):
    done = measure(bench)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["steps"] for row in rows} == {6}
    assert [(row["mode"], row["base"]) for row in rows[:5]] == [("control", "native"), ("interface", "both native"), ("torch", "both native"), ("plugin", "both native"), ("plugin", "interface")]
    assert len(rows) == 10


def test_one_process_of_each_set_goes_through_the_interface(bench):
    assert measure(bench).returncode == 0
    plugins = (bench.folder / "plugins").read_text().split()
    assert plugins == [str(bench.folder / "plugin")] * 2  # one for each model


def test_no_process_stays_when_one_fails(bench):
    done = measure(bench, FAILS="plugin")
    assert done.returncode == 1 and "ended before its time" in done.stderr


def test_a_model_that_counts_other_steps_is_refused(bench):
    done = measure(bench, ADDS="torch")
    assert done.returncode == 1 and "14 lines begin with 'step ', not 13" in done.stderr
