"""What a training script can do with the allocator current."""

import textwrap

import pytest
from conftest import PURE_FORM


def run(bench, body, **options):
    return bench.dryrun("import torch, vramledger\nlibrary = vramledger.install(trace='t.vlt')\n" + textwrap.dedent(body), **options).stdout


def test_out_of_memory_is_pytorchs_own_error_with_our_table(bench):
    out = run(bench, """
    kept = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("OOM", error)
    print("GOES ON", torch.ones(3, device="cuda").shape)
    """)
    assert "OOM CUDA out of memory. Tried to allocate 40.00 GiB" in out
    assert "60.00 GiB in use" in out and "largest hole" in out
    assert "GOES ON torch.Size([3])" in out
    failures = bench.json("report", bench.folder / "t.vlt")["failed_requests"]
    assert [f["request_bytes"] for f in failures] == [40 << 30]


def test_out_of_memory_at_the_byte(bench):
    """The virtual card has exactly room for these segments: one more does not fit."""
    out = run(bench, """
    free, total = torch.cuda.mem_get_info()
    count = free // (64 << 20)
    kept = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]
    try:
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        print("FITTED")
    except torch.OutOfMemoryError:
        print("FULL AT", count)
    """, options=("--memory", "2GiB"))
    assert "FULL AT" in out and "FITTED" not in out


def test_memory_fraction_empty_cache_and_zero_sizes(bench):
    out = run(bench, """
    print("ZERO", torch.empty(0, device="cuda").data_ptr())
    x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    del x
    reserved = lambda: library.statistics()["devices"][0]["reserved_bytes"]
    print("CACHED", reserved())
    torch.cuda.empty_cache()
    print("EMPTY", reserved())
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("LIMITED", "memory fraction" in str(error))
    """)
    assert "ZERO 0" in out
    assert f"CACHED {100 << 20}" in out
    assert "EMPTY 0" in out
    assert "LIMITED True" in out
    verdict = bench.json("report", bench.folder / "t.vlt")["verdicts"][0]
    assert verdict["sentence"].startswith("The memory fraction (1.0 % of the device) refused 10.00 GiB"), verdict


@pytest.mark.parametrize("pure", [False, True])
def test_memory_of_another_stream_is_not_reused_before_its_work_is_done(bench, pure):
    """With delayed completion a block that a side stream still reads must not be handed out again."""
    body = """
    side = torch.cuda.Stream()
    x = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    x.record_stream(side)
    del x
    again = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    print("REUSED EARLY", again.data_ptr() == address)
    side.synchronize()
    del again
    later = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    print("REUSED LATER", address in [t.data_ptr() for t in later])
    """
    if pure:  # the package connects the streams by itself
        out = bench.dryrun(f"import torch{PURE_FORM}{textwrap.dedent(body)}", options=("--delay-seed", "1"), env={"VRAMLEDGER_TRACE": "t.vlt"}).stdout
    else:
        out = run(bench, body, options=("--delay-seed", "1"))
    assert "REUSED EARLY False" in out
    assert "REUSED LATER True" in out


def test_two_devices(bench):
    out = run(bench, """
    a = torch.ones(1 << 20, device="cuda:0")
    b = torch.ones(2 << 20, device="cuda:1")
    c = a.to("cuda:1")
    with torch.cuda.device(0):
        del b
    devices = library.statistics()["devices"]
    print("BYTES", [d["allocated_bytes"] for d in devices])
    """, options=("--devices", "2"))
    assert f"BYTES [{4 << 20}, {4 << 20}]" in out
    assert bench.json("check", bench.folder / "t.vlt")["violations"] == 0


def test_amp_accumulation_clipping_and_dataloader_workers(bench):
    run(bench, """
    from torch.utils.data import DataLoader, TensorDataset
    if __name__ == "__main__":
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda")
        loader = DataLoader(TensorDataset(torch.randn(64, 32)), batch_size=8, num_workers=2, pin_memory=True)
        for index, (x,) in enumerate(loader):
            with torch.autocast("cuda", torch.float16):
                loss = model(x.cuda(non_blocking=True)).sum()
            scaler.scale(loss).backward()
            if index % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """)
    report = bench.json("report", bench.folder / "t.vlt")
    assert len(report["steps"]) == 4
    assert bench.json("check", bench.folder / "t.vlt")["violations"] == 0


def test_frees_from_other_threads_and_at_exit(bench):
    run(bench, """
    import threading
    def work():
        for _ in range(200):
            tensors.append(torch.empty(5000, device="cuda"))
            tensors.pop(0)
    tensors = [torch.empty(100, device="cuda") for _ in range(50)]
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    """)
    assert bench.json("check", bench.folder / "t.vlt")["violations"] == 0
    assert bench.json("report", bench.folder / "t.vlt")["loss"]["ended_early"] is False


def test_double_and_foreign_frees_are_named(bench):
    out = bench.dryrun("""
    import ctypes, torch, vramledger
    library = vramledger.install()
    x = torch.ones(10, device="cuda")
    free = ctypes.CDLL(str(library.path)).vramledger_free
    free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    address = x.data_ptr()
    del x
    free(address, 40, 0, None)
    free(0x1234000, 40, 0, None)
    print("ALIVE")
    """)
    assert "ALIVE" in out.stdout
    assert "double free of" in out.stderr
    assert "free of a foreign pointer" in out.stderr


@pytest.mark.parametrize("reentrant", [True, False])
def test_phases_of_checkpointing(bench, reentrant):
    run(bench, f"""
    from torch.utils.checkpoint import checkpoint
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(4)]).cuda()
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
        def forward(self, x):
            for layer in self.model:
                x = checkpoint(layer, x, use_reentrant={reentrant})
            return x
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        net(torch.randn(64, 256, device="cuda", requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """)
    phases = bench.json("report", bench.folder / "t.vlt")["phase_peaks"]
    assert {"load", "forward", "recompute", "backward", "optimizer"} <= set(phases)


def test_evaluation_is_eval(bench):
    run(bench, """
    model = torch.nn.Linear(100, 100).cuda().eval()
    with torch.no_grad():
        model(torch.randn(50, 100, device="cuda"))
    with torch.inference_mode():
        model(torch.randn(50, 100, device="cuda"))
    """)
    phases = bench.json("report", bench.folder / "t.vlt")["phase_peaks"]
    assert "eval" in phases and "forward" not in phases


def test_monitor_summary_and_user_phase(bench):
    out = run(bench, """
    model = torch.nn.Linear(1000, 1000).cuda()
    monitor = vramledger.Monitor()
    model(torch.randn(100, 1000, device="cuda")).sum().backward()
    record = monitor.record("after backward")
    with vramledger.phase("save"):
        copy = {k: v.clone() for k, v in model.state_dict().items()}
    with vramledger.phase("my part"):
        y = torch.ones(1000, device="cuda")
    print("CATEGORIES", sorted(record.categories))
    print(vramledger.summary())
    print("KEPT", [r.name for r in monitor.records])
    """)
    assert "[after backward] allocated" in out
    assert "'gradient'" in out and "'parameter'" in out
    assert "KEPT ['after backward']" in out
    assert "reserved" in out
    assert "save" in bench.json("report", bench.folder / "t.vlt")["phase_peaks"]
