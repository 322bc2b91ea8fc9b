"""Processes that a script under the launcher starts through multiprocessing."""

import pickle
import sys
from multiprocessing import spawn

import pytest
from conftest import TOOL

from vramledger import _children

# Libraries ask whether PyTorch is there before they import it.
TWO_RANKS = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
import torch

def work(rank, offset):
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
    kept = torch.ones((rank + offset) << 20, device="cuda")

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(1,), nprocs=2)
"""


def test_every_process_of_spawn_writes_its_trace(bench):
    done = bench.dryrun(TWO_RANKS, allocator=None, trace="run.vlt", options=["--devices", "2"])
    for rank in (0, 1):
        name = f"run.process{rank + 1}.vlt"
        assert f"vramledger: SpawnProcess-{rank + 1} writes its own trace: {name}\n" in done.stderr
        assert bench.json("check", bench.folder / name)["violations"] == 0
        report = bench.json("report", bench.folder / name)
        assert report["device"]["index"] == rank and report["loss"]["ended_early"] is False
        categories = {c: v["requested_bytes"] for c, v in report["peak"]["categories"].items()}
        assert categories["parameter"] == 4 * (256 * 256 + 256) and categories["optimizer_state"] == 2 * categories["parameter"]
        assert report["peak"]["requested_bytes"] > (rank + 1) << 22
        assert len(report["steps"]) == 2
        metadata = bench.json("export", bench.folder / name)["metadata"]
        assert metadata["allocator"]["mode"] == "torch" and metadata["command"][0].endswith("script1.py")
        assert (bench.folder / f"{name}.device.json").is_file()
    assert "another process did, whose trace is another file" in bench.tool("report", bench.folder / "run.vlt").stdout
    assert sorted(p.name for p in bench.folder.glob("*.vlt")) == ["run.process1.vlt", "run.process2.vlt", "run.vlt"]


@pytest.mark.parametrize("method", ("spawn", "forkserver"))
def test_only_processes_that_use_the_device_leave_a_trace(bench, method):
    """With a rank's name, a child's child, one that has a name of the script's, and one that never imports PyTorch."""
    done = bench.dryrun(f"""
    import multiprocessing, os, sys

    def idle():
        print("IDLE", "torch" in sys.modules, "vramledger" in sys.modules)

    def imports():
        import torch
        print("IMPORTS", torch.cuda.is_initialized())

    def uses(bytes, children):
        import torch
        kept = torch.ones(bytes, dtype=torch.uint8, device="cuda")
        print("OWN", os.getpid())
        for name, more in children:
            start(name, uses, more, ())

    def start(name, target, *arguments):
        process = multiprocessing.get_context("{method}").Process(name=name, target=target, args=arguments)
        process.start()
        process.join()
        assert process.exitcode == 0

    if __name__ == "__main__":
        start(None, idle)
        start(None, imports)
        start(None, uses, 1 << 20, [(None, 2 << 20), ("a/b", 3 << 20)])
    """, allocator="plugin", trace="run.%r.vlt", env={"RANK": "5"})
    assert "IDLE False True" in done.stdout and "IMPORTS False" in done.stdout
    pid = done.stdout.split("OWN ")[3].strip()
    sizes = {"run.5.process3.vlt": 1 << 20, "run.5.process3-1.vlt": 2 << 20, f"run.5.process.{pid}.vlt": 3 << 20}
    assert {p.name for p in bench.folder.glob("*.vlt")} == {"run.5.vlt", *sizes}
    for name, size in sizes.items():
        report = bench.json("report", bench.folder / name)
        assert report["peak"]["requested_bytes"] == size and report["loss"]["ended_early"] is False
    assert done.stderr.count("writes its own trace") == 3


def test_workers_of_a_data_loader_leave_no_trace_and_say_nothing(bench):
    done = bench.dryrun("""
    import torch

    if __name__ == "__main__":
        data = torch.utils.data.TensorDataset(torch.ones(32, 4))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="spawn"):
            kept = batch.cuda()
    """, allocator="torch", trace="run.vlt")
    assert "vramledger:" not in done.stderr
    assert [p.name for p in bench.folder.glob("*.vlt")] == ["run.vlt"]


def test_workers_of_a_pool_leave_no_trace_though_the_pool_kills_them(bench):
    done = bench.dryrun("""
    import multiprocessing, torch

    def work(n):
        return n + 1

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print("SUM", sum(pool.map(work, range(4))))
    """, allocator="torch", trace="run.vlt")
    assert "SUM 10" in done.stdout and "vramledger:" not in done.stderr
    assert [p.name for p in bench.folder.glob("*.vlt*")] == ["run.vlt"]


def test_install_in_the_script_is_harmless_in_its_processes_too(bench):
    """The script's first lines run again in every process that it spawns."""
    done = bench.dryrun("""
    import vramledger
    vramledger.install(trace="other.vlt")
    import torch

    def work(rank):
        with vramledger.phase("mine"):
            kept = torch.ones(1 << 18, device="cuda")

    if __name__ == "__main__":
        torch.multiprocessing.spawn(work, nprocs=1)
    """, allocator="torch", trace="run.vlt")
    assert done.stderr.count("the launcher has installed vramledger already") == 2
    assert not (bench.folder / "other.vlt").exists()
    assert [p["name"] for p in bench.json("report", bench.folder / "run.process1.vlt")["own_phases"]] == ["mine"]


def test_without_a_trace_a_process_has_the_allocator_all_the_same(bench):
    script = bench.script("""
    import torch, vramledger

    def work(rank):
        kept = torch.ones(1 << 18, device="cuda")
        print("PEAK", vramledger.installed().statistics()["devices"][0]["peak_allocated_bytes"])

    if __name__ == "__main__":
        torch.multiprocessing.spawn(work, nprocs=1)
    """)
    done = bench.run([TOOL, "dryrun", "--no-trace", "--", sys.executable, script])
    assert "PEAK 1048576" in done.stdout and "vramledger:" not in done.stderr
    assert not list(bench.folder.glob("*.vlt"))


def test_a_process_that_cannot_import_the_package_runs_and_says_so(bench):
    (bench.folder / "other").mkdir()
    (bench.folder / "other" / "sitecustomize.py").write_text("import sys; sys.modules['vramledger'] = None")
    done = bench.dryrun("""
    import multiprocessing, os

    def work():
        print("RAN")

    if __name__ == "__main__":
        os.environ["PYTHONPATH"] = os.path.abspath("other")
        process = multiprocessing.get_context("spawn").Process(target=work)
        process.start()
        process.join()
    """, allocator="torch", trace="run.vlt")
    assert "RAN" in done.stdout
    assert "import of vramledger halted; None in sys.modules; this process runs without vramledger" in done.stderr


def test_a_summary_that_cannot_be_replaced_ends_no_process(bench):
    (bench.folder / "run.process1.vlt.device.json").mkdir()
    done = bench.dryrun("""
    import torch

    def work(rank):
        kept = torch.ones(1 << 18, device="cuda")
        print("RAN")

    if __name__ == "__main__":
        torch.multiprocessing.spawn(work, nprocs=1)
    """, allocator="torch", trace="run.vlt")
    assert "RAN" in done.stdout
    assert "run.process1.vlt.device.json'; the virtual device writes no summary\n" in done.stderr
    assert bench.json("report", bench.folder / "run.process1.vlt")["peak"]["requested_bytes"] == 1 << 20


def test_a_process_whose_folder_or_standard_error_is_gone_uses_cuda_all_the_same(bench):
    done = bench.dryrun("""
    import os, sys, torch

    def work(rank):
        if rank == 0:
            os.mkdir("gone")
            os.chdir("gone")
            os.rmdir("../gone")
        else:
            sys.stderr.close()
        print("USED", torch.ones(1, device="cuda").is_cuda)

    if __name__ == "__main__":
        torch.multiprocessing.spawn(work, nprocs=2)
    """, allocator="torch", trace="run.vlt")
    assert done.stdout.count("USED True") == 2
    assert f"SpawnProcess-1 writes its own trace: {bench.folder / 'run.process1.vlt'}\n" in done.stderr
    assert bench.json("check", bench.folder / "run.process1.vlt")["violations"] == 0
    assert bench.json("check", bench.folder / "run.process2.vlt")["violations"] == 0


def test_nothing_that_fails_in_a_new_process_ends_it(monkeypatch, capsys):
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    pickle.loads(pickle.dumps(_children._Message({"trace": 1, "another version's": 2}, "SpawnProcess-1")))
    assert "; this process runs without vramledger\n" in capsys.readouterr().err
    _children._when_imported("sys", lambda: 1 // 0)  # as where a fork server has preloaded PyTorch
    assert "this process runs without vramledger:\nTraceback" in capsys.readouterr().err
