"""Putting the allocator in place: what goes wrong gets one sentence, and training goes on where PyTorch allows."""

import json
import re
import shutil
import sys

import pytest
from conftest import EXAMPLES, LIBRARY, TOOL


def test_install_after_cuda_was_initialised_names_the_reason(bench):
    out = bench.dryrun("""
    import torch, vramledger
    torch.zeros(1, device="cuda")
    try:
        vramledger.install()
    except vramledger.InstallError as error:
        print("ERROR", error)
    print(torch.zeros(2, device="cuda").shape)
    """).stdout
    assert "ERROR CUDA is already initialised in this process" in out
    assert "torch.Size([2])" in out


def test_installing_twice_is_refused(bench):
    out = bench.dryrun("""
    import vramledger
    vramledger.install()
    try:
        vramledger.install()
    except vramledger.InstallError as error:
        print("ERROR", error)
    """).stdout
    assert "ERROR vramledger is already installed in this process" in out


def test_the_library_loads_where_pytorch_came_first(bench):
    """Without the virtual device nothing is preloaded, as on a machine with a GPU: the library must not need the loader's scarce static space."""
    script = bench.script("""
    import torch, vramledger
    for mode in ("plugin",):
        print("INSTALLED", vramledger.install(mode=mode, trace="plain.vlt").path.name)
    """)
    out = bench.run([sys.executable, script]).stdout
    assert "INSTALLED libvramledger_allocator.so" in out


def test_install_in_the_script_is_harmless_under_the_launcher(bench):
    done = bench.dryrun("""
    import torch, vramledger
    library = vramledger.install(trace="other.vlt")
    torch.ones(10, device="cuda")
    print("SAME", library is vramledger.installed())
    """, allocator="plugin", trace="t.vlt")
    assert "SAME True" in done.stdout
    assert "the launcher has installed vramledger already" in done.stderr
    assert not (bench.folder / "other.vlt").exists()


def test_an_interrupted_run_closes_its_trace(bench):
    bench.dryrun("""
    import torch
    torch.ones(10, device="cuda")
    raise KeyboardInterrupt
    """, allocator="plugin", trace="t.vlt", check=False)
    assert bench.json("report", bench.folder / "t.vlt")["loss"]["ended_early"] is False


def test_a_phase_of_ones_own_is_in_the_trace(bench):
    bench.dryrun("""
    import torch, vramledger
    before = torch.ones(1 << 20, device="cuda")
    for _ in range(2):
        with vramledger.phase("my metric"):
            x = torch.ones(1 << 19, device="cuda")
            del x
    """, allocator="plugin", trace="t.vlt")
    assert "my metric" in bench.tool("export", bench.folder / "t.vlt").stdout
    (own,) = bench.json("report", bench.folder / "t.vlt")["own_phases"]
    assert (own["name"], own["times"], own["peak_bytes"], own["rise_bytes"]) == ("my metric", 2, 6 << 20, 2 << 20)
    assert "my metric" in bench.tool("report", bench.folder / "t.vlt").stdout


def test_a_phase_of_ones_own_may_begin_before_the_device_is_in_use(bench):
    bench.dryrun("""
    import torch, vramledger
    with vramledger.phase("setup"):
        with vramledger.phase("tables"):
            kept = torch.ones(1 << 18, device="cuda")
        more = torch.ones(1 << 18, device="cuda")
    with vramledger.phase("later"):
        pass
    """, allocator="plugin", trace="t.vlt")
    own = bench.json("report", bench.folder / "t.vlt")["own_phases"]
    assert [(phase["name"], phase["times"], phase["rise_bytes"]) for phase in own] == [("setup", 1, 2 << 20), ("tables", 1, 1 << 20), ("later", 1, 0)]


def test_what_torch_load_makes_belongs_to_load(bench):
    bench.dryrun("""
    import torch
    torch.save({"w": torch.ones(1 << 18)}, "w.pt")
    kept = torch.load("w.pt", map_location="cuda"), torch.load(f="w.pt", map_location="cuda")
    """, allocator="plugin", trace="t.vlt")
    report = bench.json("report", bench.folder / "t.vlt")
    assert report["peak"]["birth_phases"]["load"]["rounded_bytes"] == 2 << 20


def test_averaged_copies_get_no_gradient_in_the_formulas(bench):
    bench.dryrun("""
    import torch
    from torch.optim.swa_utils import AveragedModel
    model = torch.nn.Linear(512, 512).cuda()
    unused = torch.nn.Linear(512, 4).cuda()           # in no optimizer, and yet a backward reaches it
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        unused(model(torch.ones(8, 512, device="cuda"))).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    """, allocator="plugin", trace="t.vlt")
    rows = {row["category"]: row for row in bench.json("reconcile", bench.folder / "t.vlt")["rows"]}
    assert rows["parameter"]["textbook_bytes"] == 4 * (2 * 512 * 513 + 4 * 513)
    assert rows["gradient"]["textbook_bytes"] == 4 * (512 * 513 + 4 * 513) == rows["gradient"]["requested_bytes"]


def test_master_weights_by_hand_do_not_hide_the_gradients(bench):
    """The optimizer has float32 copies, and the model's own gradients are gone when it steps."""
    bench.dryrun("""
    import torch
    model = torch.nn.Linear(512, 512, device="cuda")
    masters = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    for _ in range(3):
        model(torch.ones(8, 512, device="cuda")).sum().backward()
        for master, p in zip(masters, model.parameters()):
            master.grad, p.grad = p.grad.clone(), None
        optimizer.step()
    """, allocator="plugin", trace="t.vlt")
    rows = {row["category"]: row for row in bench.json("reconcile", bench.folder / "t.vlt")["rows"]}
    assert rows["gradient"]["textbook_bytes"] == 4 * 512 * 513


def test_what_has_no_effect_is_said(bench):
    script = bench.script("""
    import torch
    kept = torch.ones(1 << 18, device="cuda")
    """)
    done = bench.dryrun(script, allocator="observe", trace="o.vlt", env={"VRAMLEDGER_POLICY": "vmm"})
    assert "VRAMLEDGER_POLICY has no effect" in done.stderr
    replayed = bench.tool("replay", bench.folder / "o.vlt").stdout
    assert "Equal to the recording" in replayed and "Policy native" in replayed
    # Hooks were there, though no module ran.
    assert "without hooks" not in bench.tool("report", bench.folder / "o.vlt").stdout
    done = bench.tool("replay", bench.folder / "o.vlt", "--settings", "backend:cudaMallocAsync", check=False)
    assert done.returncode == 2 and "backend:cudaMallocAsync is not used" in done.stderr
    nested = [TOOL, "dryrun", "--trace", "n.vlt", "--", sys.executable, "-m", "vramledger", "run", "--policy", "vmm", "--trace", "other.vlt", script]
    assert "`run` inside `vramledger dryrun` has no effect" in bench.run(nested).stderr
    assert not (bench.folder / "other.vlt").exists() and bench.json("report", bench.folder / "n.vlt")["peak"]["rounded_bytes"] == 1 << 20


def test_a_missing_library_is_named_and_the_script_runs(bench):
    done = bench.dryrun(EXAMPLES / "dcgan.py", "--batch", "4", "--steps", "1", allocator="plugin", trace="t.vlt",
                        env={"VRAMLEDGER_LIBRARY": "/nonexistent/lib.so"})
    assert "VRAMLEDGER_LIBRARY names '/nonexistent/lib.so', which is no file; the script runs without vramledger" in done.stderr
    assert "step 1 done" in done.stdout


def test_every_rank_of_torchrun_writes_its_trace(bench):
    """The form that the README gives."""
    script = bench.script("""
    import os, torch
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    kept = torch.ones((rank + 1) << 18, device="cuda")
    """)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    bench.run([TOOL, "dryrun", "--devices", "2", "--allocator", "native", "--", *torchrun, "-m", "vramledger", "run", "--trace", "run.%r.vlt", script])
    for rank in (0, 1):
        report = bench.json("report", bench.folder / f"run.{rank}.vlt")
        assert report["peak"]["rounded_bytes"] == (rank + 1) << 20
        assert report["device"]["index"] == rank
        assert (bench.folder / f"run.{rank}.vlt.device.json").is_file()


def test_an_impossible_trace_path_is_refused_before_the_script_starts(bench):
    script = bench.script("print('STARTED')")
    (bench.folder / "folder.vlt").mkdir()
    for path, sentence in (("/nonexistent/t.vlt", "there is no folder '/nonexistent' for the trace '/nonexistent/t.vlt'"),
                           ("folder.vlt", "the trace 'folder.vlt' is a folder"),
                           ("/dev/null", "the trace '/dev/null' cannot be written: it is no regular file"), ("script1.py/t.vlt", "there is no folder 'script1.py'")):
        done = bench.dryrun(script, allocator="plugin", trace=path, check=False)
        assert done.returncode == 2 and f"vramledger: {sentence}" in done.stderr
        assert "STARTED" not in done.stdout


def test_a_policy_in_mode_observe_is_refused_before_the_script_starts(bench):
    script = bench.script("print('STARTED')")
    done = bench.run([sys.executable, "-m", "vramledger", "run", "--mode", "observe", "--policy", "vmm", script], check=False)
    assert done.returncode == 2 and "leave --policy out" in done.stderr and "STARTED" not in done.stdout


def test_options_of_run_that_contradict_each_other_are_refused_before_the_script_starts(bench):
    script = bench.script("print('STARTED')")
    for options, sentence in ((["--trace", "t.vlt"], "--no-trace and --trace t.vlt contradict each other"),
                              (["--stacks", "python"], "--stacks records into the trace, and --no-trace writes none")):
        done = bench.run([TOOL, "dryrun", "--no-trace", *options, "--", sys.executable, script], check=False)
        assert done.returncode == 2 and sentence in done.stderr and "STARTED" not in done.stdout


def test_run_and_dryrun_describe_their_common_options_alike(bench):
    helps = [" ".join(bench.run(command, env={"COLUMNS": "200"}).stdout.split()) for command in
             ([sys.executable, "-m", "vramledger", "run", "--help"], [TOOL, "dryrun", "--help"])]
    for option in ("--policy", "--stacks", "--no-trace", "--no-hooks"):
        in_run, in_dryrun = (re.search(rf" {option} (?:\S*{{\S+}} )?(.+?) --?[a-z]", text)[1] for text in helps)
        assert in_run == in_dryrun, option


def test_settings_that_the_policy_has_no_use_for_are_named(bench):
    done = bench.dryrun(STATISTICS, allocator="torch", options=["--policy", "vmm"], env={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert done.stderr.count("max_split_size_mb has an effect on private pools only") == 1
    assert "private pools only" not in bench.dryrun(STATISTICS, allocator="torch", env={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}).stderr


@pytest.mark.parametrize("mode", ("torch", "observe", "plugin"))
def test_an_empty_trace_for_want_of_caching_says_why(bench, mode):
    done = bench.dryrun("import torch; x = torch.ones(1 << 20, device='cuda')", allocator=mode, trace="t.vlt", env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    allocations = [e for e in bench.json("export", bench.folder / "t.vlt")["events"] if e["kind"] == "alloc"]
    if mode == "plugin":
        assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 has no effect in mode plugin" in done.stderr and len(allocations) == 1
    else:
        assert "sends every request past the allocator, so none is recorded" in done.stderr and not allocations
        assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 sent every request past the allocator" in bench.tool("report", bench.folder / "t.vlt").stdout


STATISTICS = """
import torch
x = torch.ones(1 << 20, device="cuda")
print("MOST", torch.cuda.max_memory_allocated())
"""


def test_a_dry_run_takes_by_itself_the_allocator_with_pytorchs_statistics(bench):
    assert "MOST 4194304" in bench.dryrun(STATISTICS, allocator=None, trace="t.vlt").stdout
    assert bench.json("report", bench.folder / "t.vlt")["peak"]["rounded_bytes"] == 4194304


def test_without_the_library_for_this_pytorch_the_plugin_serves_and_says_so(bench):
    alone = bench.folder / LIBRARY.name
    shutil.copy(LIBRARY, alone)
    done = bench.dryrun("import torch; print(torch.ones(10, device='cuda').shape)", allocator=None, trace="t.vlt", env={"VRAMLEDGER_LIBRARY": str(alone)})
    assert "torch.Size([10])" in done.stdout
    assert "libvramledger_torch.so was not found" in done.stderr and "mode plugin serves, without torch.cuda's snapshots" in done.stderr


def test_the_devices_summary_lies_beside_the_trace_of_each_rank(bench):
    script = bench.script("import torch; torch.ones(10, device='cuda')")
    for rank in ("0", "1"):
        (bench.folder / f"t.{rank}.vlt.device.json").write_text("of an earlier run")
        bench.dryrun(script, allocator="plugin", trace="t.%r.vlt", env={"RANK": rank})
    bench.dryrun(script, allocator="plugin")
    for name in ("t.0.vlt", "t.1.vlt", "script1.vlt"):
        assert (bench.folder / name).is_file()
        assert json.loads((bench.folder / f"{name}.device.json").read_text())["device"] == "h100-80gb"
    assert not list(bench.folder.glob("*%r*"))


def test_the_pure_form_with_an_unwritable_trace_says_so_once_and_trains(bench):
    done = bench.dryrun("""
    import os, torch
    plugin = torch.cuda.memory.CUDAPluggableAllocator(os.environ["VRAMLEDGER_LIBRARY"], "vramledger_malloc", "vramledger_free")
    torch.cuda.memory.change_current_allocator(plugin)
    print(torch.ones(3, device="cuda").shape)
    """, env={"VRAMLEDGER_TRACE": "/nonexistent/t.vlt"})
    assert done.stderr.count("cannot create the trace") == 1
    assert "torch.Size([3])" in done.stdout


def test_a_full_disk_at_the_start_is_named(bench):
    """The limit on file sizes stands for the disk: the writer reserves its space, so that it can never be hit by SIGBUS later."""
    done = bench.dryrun("""
    import resource, signal, torch, vramledger
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        vramledger.install(trace="full.vlt")
    except vramledger.InstallError as error:
        print("ERROR", error)
    vramledger.install()
    print(torch.ones(3, device="cuda").shape)
    """).stdout
    assert "ERROR cannot reserve" in done and "File too large" in done
    assert "torch.Size([3])" in done


def test_a_disk_that_fills_up_loses_chunks_counted_but_not_the_run(bench):
    done = bench.dryrun("""
    import resource, signal, torch, vramledger
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    library = vramledger.install(trace="full.vlt")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_400_000, 4_400_000))
    for i in range(150_000):
        torch.empty(1 + i * 37 % 100_000, dtype=torch.uint8, device="cuda")
    print("LOST", library.statistics()["lost_records"] > 0)
    """)
    assert "LOST True" in done.stdout
    report = bench.json("report", bench.folder / "full.vlt")
    assert report["loss"]["lost_records"] > 0


def test_a_script_that_does_not_exist(bench):
    done = bench.dryrun(bench.folder / "missing.py", allocator="plugin", trace="t.vlt", check=False)
    assert done.returncode == 2
    assert "missing.py" in done.stderr


def test_the_exit_code_and_arguments_of_the_script_pass_through(bench):
    script = bench.script("import sys; print(sys.argv[1:]); sys.exit(7)")
    done = bench.dryrun(script, "--batch", "3", allocator="plugin", trace="t.vlt", check=False)
    assert done.returncode == 7
    assert "['--batch', '3']" in done.stdout


def test_two_processes_with_one_trace_path_keep_both(bench):
    script = bench.script("""
    import subprocess, sys, torch
    x = torch.ones(10, device="cuda")
    if len(sys.argv) > 1:
        done = subprocess.run([sys.executable, "-m", "vramledger", "run", "--trace", sys.argv[1], __file__], capture_output=True, text=True)
        print(done.stderr)
    """)
    out = bench.dryrun(script, bench.folder / "same.vlt", allocator="plugin", trace=bench.folder / "same.vlt").stdout
    assert "is being written by another process; this one writes" in out
    assert len([p for p in bench.folder.glob("same.vlt*") if "device.json" not in p.name]) == 2
