"""How programs end: in every mode with the exit code that they would have had, and with a complete trace."""

import os
import sys
import textwrap

import pytest
from conftest import SITE, ends_may_abort

MODES = ("plugin", "torch", "observe")

ENDINGS = {
    "tensors_live_at_exit": """
        kept = [torch.ones(1 << 20, device="cuda") for _ in range(3)]
        model = torch.nn.Linear(64, 64).cuda()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        """,
    "exception_in_a_step": """
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        class Refuses(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, gradient):
                torch.ones(1000, device="cuda")
                raise ValueError("no gradient")
        for step in range(3):
            try:
                loss = Refuses.apply(model(torch.ones(8, 64, device="cuda"))).sum()
                loss.backward()
                optimizer.step()
            except ValueError:
                optimizer.zero_grad()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        """,
    "fork_after_cuda_was_used": """
        import os
        kept = torch.ones(1 << 20, device="cuda")
        child = os.fork()
        if child == 0:
            del kept
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        more = torch.ones(1 << 20, device="cuda")
        """,
    # On PyTorch 2.15 it is site/sitecustomize.py that makes this end well: a backward thread that waits for the interpreter when that ends aborts the
    # process, whatever the allocator.
    "right_after_a_backward": """
        model = torch.nn.Linear(64, 64).cuda()
        sys.setswitchinterval(1000)
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        """,
    # Parked ones: a daemon thread that is inside PyTorch when the interpreter ends aborts the process, whatever the allocator.
    "threads_alive_at_shutdown": """
        import threading
        ready = threading.Barrier(4)
        def work():
            kept = [torch.ones(1000, device="cuda") for _ in range(3)]
            del kept[1]
            ready.wait()
            threading.Event().wait()
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        [t.start() for t in threads]
        ready.wait()
        """,
}
# What PyTorch refuses to a plug-in.
ENDINGS_WITH_POOLS = {
    "tensors_outlive_their_pool": """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            kept = torch.ones(1 << 20, device="cuda")
        del pool
        torch.cuda.empty_cache()
        del kept
        torch.cuda.empty_cache()
        """,
}
ENDINGS_WITH_GRAPHS = {
    "tensors_outlive_their_graph": """
        x = torch.ones(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        graph.reset()
        del graph
        torch.cuda.empty_cache()
        """,
}
CASES = [(mode, name, body) for mode in MODES for name, body in {**ENDINGS, **ENDINGS_WITH_GRAPHS}.items()]
CASES += [(mode, name, body) for mode in ("torch", "observe") for name, body in ENDINGS_WITH_POOLS.items()]


@pytest.mark.parametrize("mode, name, body", CASES, ids=[f"{mode}-{name}" for mode, name, _ in CASES])
def test_ends_with_exit_code_0_and_a_complete_trace(bench, mode, name, body):
    script = f'import sys, torch, vramledger\nvramledger.install(mode="{mode}", trace="t.vlt")\n' + textwrap.dedent(body)
    done = bench.dryrun(script, timeout=120)
    assert "vramledger:" not in done.stderr
    check = bench.json("check", bench.folder / "t.vlt")
    assert check["violations"] == 0
    loss = bench.json("report", bench.folder / "t.vlt")["loss"]
    assert loss["ended_early"] is False
    assert loss["lost_records"] == 0


def test_what_a_forked_child_does_is_counted_as_lost(bench):
    """Forked before CUDA is used, the child can use it itself, but the trace is its parent's."""
    bench.dryrun("""
    import os, torch, vramledger
    vramledger.install(mode="plugin", trace="t.vlt")
    child = os.fork()
    if child == 0:
        torch.ones(1000, device="cuda")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    kept = torch.ones(1000, device="cuda")
    """)
    loss = bench.json("report", bench.folder / "t.vlt")["loss"]
    assert loss["lost_records"] > 0
    assert loss["ended_early"] is False


def test_two_processes_train_with_distributed_data_parallel(bench):
    """Two ranks on one virtual device, over gloo; each writes its own trace."""
    bench.dryrun("""
    import os, torch, torch.distributed as dist, torch.multiprocessing, vramledger
    def train(rank):
        os.environ["RANK"] = str(rank)
        vramledger.install(mode="torch", trace="ddp%r.vlt")
        torch.cuda.set_device(0)
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + os.path.abspath("meet"))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(8, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()
    if __name__ == "__main__":
        torch.multiprocessing.spawn(train, nprocs=2)
    """)
    for rank in (0, 1):
        trace = bench.folder / f"ddp{rank}.vlt"
        assert bench.json("check", trace)["violations"] == 0
        report = bench.json("report", trace)
        assert len(report["steps"]) == 2
        sizes = {c: v["requested_bytes"] for c, v in report["peak"]["categories"].items()}
        assert sizes["parameter"] == 4 * (256 * 256 + 256)


def test_the_way_out_of_processes_is_changed_only_where_pytorch_itself_aborts(bench):
    assert not ends_may_abort((2, 11), (3, 11)) and not ends_may_abort((2, 12), (3, 13)) and not ends_may_abort((2, 15), (3, 14))
    assert ends_may_abort((2, 15), (3, 13)) and ends_may_abort((3, 0), (3, 11))
    done = bench.run([sys.executable, "-c", "import contextvars; print(contextvars.copy_context.__module__)"])
    assert done.stdout.strip() == ("sitecustomize" if ends_may_abort() else "_contextvars")


def test_the_machines_own_sitecustomize_runs_behind_that_of_the_tests(bench):
    own = bench.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('OWN', __name__, __file__)")
    script = "import contextvars, sitecustomize; print(contextvars.copy_context.__module__, sitecustomize.__file__)"
    done = bench.run([sys.executable, "-c", script], env={"PYTHONPATH": os.pathsep.join((str(SITE), str(own)))})
    assert done.stdout.split("\n")[:2] == [f"OWN sitecustomize {own}/sitecustomize.py", f"sitecustomize {own}/sitecustomize.py"]
    assert not done.stderr


def test_what_a_full_disk_has_lost_is_said_by_the_run_and_by_each_answer(bench):
    """The limit on the size of files stands for the disk."""
    done = bench.dryrun("""
    import os, resource, time, torch, vramledger
    vramledger.install(mode="plugin", trace="t.vlt")
    def allocate():
        for _ in range(100_000):
            x = torch.empty(1 << 10, device="cuda")
    before = 0
    allocate()
    while before != (before := os.path.getsize("t.vlt")):
        time.sleep(0.2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before, before))
    allocate()
    """)
    assert "records of the trace" in done.stderr and "were lost, because the disk is full" in done.stderr
    for question in (("report",), ("reconcile",), ("advise", "--capacity", "24GiB")):
        answer = bench.tool(*question, bench.folder / "t.vlt").stdout
        assert " records were lost: every figure is of those that are left" in answer, answer
