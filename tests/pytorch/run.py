#!/usr/bin/env python3
"""PyTorch's own tests of its CUDA allocator, run with ours on the virtual device.

    python3 tests/pytorch/run.py --python VENV/bin/python --build BUILD [--source FOLDER] [--results FILE.jsonl] [--report FILE.md]

VENV holds the PyTorch wheel of the same version as the source, with expecttest, hypothesis, numpy and psutil. BUILD is this project built for
that wheel (cmake -DVRAMLEDGER_SITE_PACKAGES=...). FOLDER is a PyTorch source tree; without it the source package that Debian carries is
fetched into the cache folder (VRAMLEDGER_CACHE, else ~/.cache/vramledger), its SHA-256 is checked, and test/test_cuda.py is taken from it.
Nothing of PyTorch's is kept in this project.

Each test runs in a process of its own: first with PyTorch's allocator. What does not pass there says nothing about ours: it is not applicable, with its
last line. What passes there must pass with ours. With --results, what each test gave is kept as soon as it ends, and a run that was interrupted goes on from
there; --again REGEX runs what it finds once more. Exit code: 0 all did, 1 some did not, 2 wrong use, 3 a source that cannot be read.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

TEST_FILE = "test/test_cuda.py"
# Debian's source packages of PyTorch, with the sums of their .dsc files.
DEBIAN_FOLDER = "pool/main/p/pytorch"
DEBIAN_SOURCES = {
    "2.12.1": ("pytorch_2.12.1+dfsg.orig.tar.xz", "95b6f85e1da2776f0cb0e5a635c4430b4e3f05b6ccb9e00237f3cecd15572875"),
    "2.14.1": ("pytorch_2.14.1+dfsg.orig.tar.xz", "50a484ab557b7d35fb24bc5257cf5f41307a55bc2ebcc69d011f01fdb1369ced"),
}
OURS = ("torch", "observe", "plugin")
DEVICE = "h100-80gb"

# What the tests are about, told by their names, in this order; the first that fits decides. No reason: run it.
SELECTION = (
    (r"nvml|temperature|power_draw|clock_speed|device_memory_used|amdsmi|uuid", "asks NVIDIA's management library, not the allocator"),
    (r"rocm|hip_", "is about AMD's devices"),
    (r"^TestGDS|gds_", "is about reading files straight into device memory"),
    (r"^TestCompileKernel", "compiles kernels of its own and checks what they compute"),
    (r"^TestCudaGreenContexts", "is about partitions of a device"),
    (r"^TestCudaAutocast\.(?!.*cache_leak)", "checks types and values of operators"),
    (r"rng|manual_seed|random|distribution|multinomial", "checks random numbers, which kernels make"),
    (r"memory|mempool|mem_pool|stream|event|graph|capture|alloc|snapshot|oom|pool|pinned|pin_|fraction|block|cycles|cache|traceback|split|garbage|"
     r"checkpoint|segment|raises_oom|unpinned|two_graphs|plots|viz|profiler|device_context|lazy_init|deleter|resnet|tensor_dies|simple", None),
    (r"", "checks values, types or settings of operators, not memory"),
)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], epilog="Needs: see the head of this file. Example: python3 tests/pytorch/run.py --python VENV/bin/python --build BUILD")
    parser.add_argument("--python", required=True, help="the interpreter of the environment that holds PyTorch")
    parser.add_argument("--build", default=ROOT / "build", type=Path, help="this project, built for that PyTorch")
    parser.add_argument("--source", type=Path, help="a PyTorch source tree; default: Debian's source package of the version")
    parser.add_argument("--ways", nargs="+", choices=OURS, default=list(OURS), help="the modes to compare with PyTorch's allocator")
    parser.add_argument("--only", default="", help="a regular expression: only tests whose name it finds")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a test may take; some compile an extension")
    parser.add_argument("--jobs", type=int, default=2, help="tests run at a time")
    parser.add_argument("--results", type=Path, help="where to keep what each test gave, as JSON lines; tests that it holds are not run again")
    parser.add_argument("--again", default="", help="a regular expression: tests with ours to run although --results has them, 'MODE Class.test'")
    parser.add_argument("--logs", type=Path, help="where to keep what each test printed")
    parser.add_argument("--report", type=Path, help="where to write the table, as Markdown")
    return parser.parse_args()


def fail(code, sentence):
    print(f"run.py: {sentence}", file=sys.stderr)
    sys.exit(code)


def torch_version(python):
    done = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('torch'))"], capture_output=True, text=True)
    if done.returncode != 0:
        fail(2, f"'{python}' has no PyTorch")
    return done.stdout.strip().partition("+")[0]


def fetch(name, archive):
    """From the first of the archives that this machine's apt knows which has it."""
    asked = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=False) if shutil.which("apt-get") else None
    archives = list(dict.fromkeys(asked.stdout.split())) if asked else []
    why = "apt knows no archive"
    for base in archives:
        address = f"{base.rstrip('/')}/{DEBIAN_FOLDER}/{name}"
        print(f"fetching {address}", flush=True)
        try:
            urllib.request.urlretrieve(address, archive)
            return
        except (urllib.error.URLError, OSError) as error:
            why = f"{address}: {error}"
    fail(3, f"{name} could not be fetched ({why}): name a source tree with --source")


def debian_source(version):
    """The path of test_cuda.py from Debian's source package, fetched once."""
    if version not in DEBIAN_SOURCES:
        fail(2, f"there is no source package of PyTorch {version} among the known ones ({', '.join(DEBIAN_SOURCES)}): name a source tree with --source")
    name, expected = DEBIAN_SOURCES[version]
    cache = Path(os.environ.get("VRAMLEDGER_CACHE", Path.home() / ".cache" / "vramledger")) / f"pytorch-{version}"
    test_file = cache / Path(TEST_FILE).name
    if test_file.is_file():
        return test_file
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / name
    if not archive.is_file():
        fetch(name, archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != expected:
        archive.unlink()
        fail(3, f"'{archive}' had the SHA-256 {found}, not {expected}; it was removed")
    with tarfile.open(archive) as tar:
        member = next((m for m in tar if m.name.endswith(f"/{TEST_FILE}") and m.isfile()), None)
        if member is None:
            fail(3, f"'{archive}' holds no {TEST_FILE}")
        test_file.write_bytes(tar.extractfile(member).read())
    archive.unlink()
    return test_file


def why_not(name):
    return next(reason for pattern, reason in SELECTION if re.search(pattern, name, re.IGNORECASE if pattern.islower() else 0))


class Runner:
    def __init__(self, options, version, test_file):
        os.environ["VRAMLEDGER_BUILD"] = str(options.build.resolve())
        import virtual_device

        self.options, self.version, self.test_file = options, version, test_file
        self.folder = Path(options.logs or tempfile.mkdtemp(prefix="pytorch-tests-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = virtual_device.environment(
            device=DEVICE, PYTHONPATH=f"{ROOT / 'tracer' / 'python'}:{HERE / 'site'}",
            VRAMLEDGER_LIBRARY=str(options.build.resolve() / "lib" / "libvramledger_allocator.so"))
        self.results = Path(options.results or self.folder / "results.jsonl").resolve()
        if options.results is None:
            self.results.unlink(missing_ok=True)
        self.known = self.read()

    def read(self):
        """way -> test -> what it gave last."""
        known = {}
        for number, line in enumerate(self.results.read_text().splitlines() if self.results.is_file() else (), 1):
            try:
                r = json.loads(line)
                made_with = r["torch"]
                known.setdefault(r["way"], {})[r["test"]] = r
            except (ValueError, TypeError, KeyError):
                fail(3, f"line {number} of '{self.results}' is not what a test gave")
            if made_with != self.version:
                fail(2, f"'{self.results}' is of PyTorch {made_with}, not {self.version}: name another file with --results")
        return known

    def worker(self, way, out, names=(), job=0):
        command = [self.options.python, HERE / "worker.py", self.test_file, way, out, str(self.options.timeout), self.version]
        # What tests compile: several give different sources the same name.
        environment = {**self.environment, "TORCH_EXTENSIONS_DIR": str(self.folder / f"extensions{job}")}
        done = subprocess.run(command, input="\n".join(names), text=True, cwd=self.folder, env=environment, stderr=subprocess.PIPE)
        if done.returncode != 0:
            fail(3, f"the worker for '{way}' ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")

    def list(self):
        out = self.folder / "names.txt"
        self.worker("list", out)
        return out.read_text().split()

    def run(self, way, names):
        """name -> what it gave. Only what is not known yet is run."""
        again = re.compile(self.options.again) if self.options.again else None
        known = {n: r for n, r in self.known.get(way, {}).items() if again is None or not again.search(f"{way} {n}")}
        missing = [n for n in names if n not in known]
        if missing:
            print(f"{way}: {len(names) - len(missing)} known, {len(missing)} to run", flush=True)
            jobs = max(1, min(self.options.jobs, len(missing)))
            with ThreadPoolExecutor(jobs) as pool:
                # Dealt round, so that the slow ones of a class are spread.
                list(pool.map(lambda i: self.worker(way, self.results, missing[i::jobs], i), range(jobs)))
            self.known = self.read()
        return {n: self.known[way][n] for n in names}


def main():
    options = parse_arguments()
    version = torch_version(options.python)
    if options.source is not None:
        test_file = options.source / TEST_FILE
        if not test_file.is_file():
            fail(3, f"'{options.source}' holds no {TEST_FILE}")
    else:
        test_file = debian_source(version)
    runner = Runner(options, version, test_file.resolve())
    names = sorted(n for n in runner.list() if re.search(options.only, n))
    chosen = [n for n in names if why_not(n) is None]
    print(f"PyTorch {version}: {len(names)} tests, {len(chosen)} of them about memory, streams, events, graphs or pools", flush=True)
    results = {"native": runner.run("native", chosen)}
    applicable = [n for n in chosen if results["native"][n]["outcome"] == "passed"]
    print(f"{len(applicable)} pass with PyTorch's own allocator on the virtual device", flush=True)
    faults = 0
    for way in options.ways:
        results[way] = runner.run(way, applicable)
        failed = [r for r in results[way].values() if r["outcome"] != "passed"]
        faults += len(failed)
        print(f"mode {way}: {len(applicable) - len(failed)} passed, {len(failed)} did not", flush=True)
        for r in failed:
            print(f"  {r['test']}: {r['last_line']}", flush=True)
    if options.report:
        from report import markdown

        options.report.write_text(markdown(version, names, results, why_not))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
