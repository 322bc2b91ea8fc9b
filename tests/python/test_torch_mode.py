"""Mode torch: our allocator as PyTorch's own kind, against PyTorch's allocator and against PyTorch's features."""

import json
from pathlib import Path

import pytest
from conftest import BUILD

MODELS = Path(__file__).with_name("equal_models.py")
REQUESTS = Path(__file__).with_name("random_requests.py")
BEHAVIOUR = Path(__file__).with_name("same_behaviour.py")


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_statistics_and_addresses_equal_the_native_allocator(bench, settings):
    seen = bench.answers(MODELS, ("native", "torch"), env={"PYTORCH_ALLOC_CONF": settings} if settings else None)
    for model in seen["native"]:
        native, ours = seen["native"][model], seen["torch"][model]
        assert len(native["stats"]) > 100
        assert ours["stats"] == native["stats"], model
        assert ours["segments"] == native["segments"], model


def test_of_equal_free_blocks_the_same_is_taken_as_by_the_native_allocator(bench):
    seen = bench.answers(REQUESTS, ("native", "torch"))
    assert len(seen["native"]["addresses"]) == 3000
    assert seen["torch"] == seen["native"]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_interfaces_answer_as_with_the_native_allocator(bench, settings):
    """Graphs, pools, lending pools, out of memory, streams, raw blocks, history, profiler, torch.accelerator, summaries."""
    answers = bench.answers(BEHAVIOUR, ("native", "torch"), env={"PYTORCH_ALLOC_CONF": settings} if settings else None)
    assert len(answers["native"]) > 10
    for name, native in answers["native"].items():
        assert answers["torch"][name] == native, name
        # PyTorch does not lend parts of expandable segments.
        assert not isinstance(native, str) or (name == "lending_pool" and settings), f"{name}: {native}"


def test_an_error_names_where_the_bytes_are(bench):
    done = bench.dryrun("""
    import torch, vramledger
    vramledger.install(mode="torch", trace="t.vlt")
    model = torch.nn.Linear(4096, 4096).cuda()
    try:
        torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("TEXT", error)
    print("RETRIES", torch.cuda.memory_stats()["num_ooms"])
    """)
    assert "TEXT CUDA out of memory. Tried to allocate 200.00 GiB" in done.stdout
    assert "largest hole" in done.stdout and "In use by category, as known so far (a report sees the whole run): parameter" in done.stdout
    assert "RETRIES 1" in done.stdout


def test_a_wrong_setting_is_refused_in_the_words_of_the_native_allocator(bench):
    script = """
    import torch%s
    torch.ones(1, device="cuda")
    """
    said = []
    for install in ("", ", vramledger; vramledger.install(mode='torch')"):
        done = bench.dryrun(script % install, env={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:-0.1"}, check=False)
        assert done.returncode != 0
        said.append(next(line for line in done.stderr.splitlines() if line.startswith(("RuntimeError", "ValueError"))))
    assert said[1] == said[0] and "per_process_memory_fraction" in said[0]


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_a_named_back_end_is_no_obstacle(bench, backend):
    """PyTorch checks the setting against the current allocator, which is ours."""
    done = bench.dryrun("""
    import torch, vramledger
    vramledger.install(mode="torch")
    x = torch.ones(1, device="cuda")
    torch.cuda.memory._set_allocator_settings("backend:%s,max_split_size_mb:40")
    print("NAME", torch.cuda.get_allocator_backend(), torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] >> 20)
    """ % backend, env={"PYTORCH_ALLOC_CONF": f"backend:{backend},max_split_size_mb:30"})
    assert "NAME vramledger 40" in done.stdout


def test_changed_settings_and_the_chosen_policy_are_in_the_trace(bench):
    done = bench.dryrun("""
    import torch, vramledger
    for mode, policy in (("torch", "best"), ("observe", "vmm")):
        try:
            vramledger.install(mode=mode, policy=policy)
        except vramledger.InstallError as error:
            print("ERROR", error)
    vramledger.install(mode="torch", trace="t.vlt", policy="vmm")
    torch.ones(1, device="cuda")
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:2")
    x = torch.empty(33 << 20, dtype=torch.uint8, device="cuda")
    print("BLOCK", torch.cuda.memory_allocated())
    """)
    assert "ERROR policy is 'native', 'vmm' or None, not 'best'" in done.stdout
    assert "ERROR mode observe watches" in done.stdout
    assert f"BLOCK {48 << 20}" in done.stdout
    exported = bench.json("export", bench.folder / "t.vlt")
    assert exported["metadata"]["allocator"]["policy"] == "vmm"
    assert "allocator settings: roundup_power2_divisions" in json.dumps(exported)


def test_distributed_training_on_one_rank(bench):
    done = bench.dryrun("""
    import os, torch, torch.distributed as dist, vramledger
    from torch.distributed.fsdp import fully_shard
    vramledger.install(mode="torch", trace="t.vlt")
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://" + os.path.abspath("meet"))
    def train(model):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(8, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    layers = lambda: torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)]).cuda()
    train(torch.nn.parallel.DistributedDataParallel(layers(), gradient_as_bucket_view=True))
    sharded = layers()
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    train(sharded)
    dist.destroy_process_group()
    print("TRAINED")
    """)
    assert "TRAINED" in done.stdout
    bench.tool("check", bench.folder / "t.vlt")


def test_compiled_models_with_and_without_graphs(bench):
    done = bench.dryrun("""
    import torch, vramledger
    vramledger.install(mode="torch", trace="t.vlt")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(model, mode=mode)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch._dynamo.reset()
    print("POOLS", len({tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}))
    """)
    assert "POOLS 2" in done.stdout
    bench.tool("check", bench.folder / "t.vlt")


def test_a_cpp_program_on_libtorch(bench):
    bench.run(["cmake", "--build", BUILD, "--target", "libtorch_train"], timeout=600)
    trace = bench.folder / "cpp.vlt"
    done = bench.tool("dryrun", "--allocator", "native", "--", BUILD / "bin" / "libtorch_train", trace)
    assert "trained 3 steps" in done.stdout
    report = bench.json("report", trace)
    # Each at its own peak: where that of all is differs between releases.
    categories = report["category_peaks"]
    parameters = 4 * (1024 * 4096 * 2 + 4096 + 1024)
    assert categories["parameter"]["requested_bytes"] == parameters
    assert categories["gradient"]["requested_bytes"] == parameters
    assert categories["optimizer_state"]["requested_bytes"] == 2 * parameters
    assert {"forward", "backward", "optimizer"} <= set(report["phase_peaks"])
    assert len(report["steps"]) == 3
