"""What a program sees on the virtual device, on the official PyTorch wheel."""

import json
import subprocess
import sys

import pytest
import virtual_device
from conftest import KEEPING, KEPT_WORKSPACES, TORCH

MIB = 1 << 20
CONTEXT = 160 * MIB   # the device's assumption, README.md of tools/virtual_device


def test_what_the_host_wrote_comes_back():
    result = virtual_device.run("""
        import torch
        x = torch.randn(1000, 33)
        y = x.cuda()
        assert (y.cpu() == x).all()
        assert (y[10:20].cpu() == x[10:20]).all()
        p = torch.arange(50.0).pin_memory()
        assert (p.cuda(non_blocking=True).cpu() == p).all()
        assert (y.clone().cpu() == x).all()    # a copy within the device
    """)
    assert result.summary["host_reads"] == 0
    assert "should have made" not in result.stderr


def test_a_value_that_a_kernel_should_have_made_is_zero_counted_and_named():
    result = virtual_device.run("""
        import torch
        x = torch.ones(4, 4, device="cuda")
        y = (x @ x).sum()
        value = y.item()
        assert value == 0
        assert y.tolist() == 0
        print("line", 5)
    """)
    assert result.summary["host_reads"] == 2
    assert result.summary["host_read_bytes"] == 8
    sites = [site["python"] for site in result.summary["host_read_sites"]]
    assert any(site.endswith("script.py:5") for site in sites) and any(site.endswith("script.py:7") for site in sites), sites
    assert result.summary["host_read_sites"][0]["native"]
    assert "read 2 value(s) that a kernel should have made" in result.stderr


def test_training_with_values_that_decide():
    """Scaling, clipping and finite checks take the road they take on zeros, and the run goes on."""
    virtual_device.run("""
        import torch
        model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for dtype in (torch.float16, torch.bfloat16):
            for _ in range(2):
                with torch.autocast("cuda", dtype):
                    loss = model(torch.randn(2, 16, 64, device="cuda")).sum()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        assert len(optimizer.state) == len(list(model.parameters()))
        assert torch.isnan(loss).any().item() is False
    """)


@pytest.mark.parametrize("order", ["up", "down"])
def test_out_of_memory_at_the_byte(order):
    total = 3 << 30
    result = virtual_device.run("""
        import torch
        free, total = torch.cuda.mem_get_info()
        print(free, total)
        whole = free // (2 << 20) * (2 << 20)
        x = torch.empty(whole, dtype=torch.uint8, device="cuda")
        print(torch.cuda.mem_get_info()[0])
        del x
        torch.cuda.empty_cache()
        try:
            torch.empty(whole + 1, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(error)
    """, memory=total, address_order=order)
    lines = result.stdout.splitlines()
    assert lines[0] == f"{total - CONTEXT} {total}"
    assert lines[1] == "0"
    assert "CUDA out of memory. Tried to allocate 2.85 GiB. GPU 0 has a total capacity of 3.00 GiB of which 2.84 GiB is free." in lines[2]


def test_address_orders_differ_only_in_addresses():
    script = """
        import torch
        kept = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda").data_ptr()]
        held = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        print(*[t.data_ptr() for t in held])
        print(torch.cuda.memory_reserved())
    """
    up = virtual_device.run(script, address_order="up").stdout.splitlines()
    down = virtual_device.run(script, address_order="down").stdout.splitlines()
    again = virtual_device.run(script, address_order="up").stdout.splitlines()
    assert up == again
    addresses = [int(a) for a in up[0].split()]
    assert addresses == sorted(addresses)
    assert [int(a) for a in down[0].split()] == sorted((int(a) for a in down[0].split()), reverse=True)
    assert up[1] == down[1]


@pytest.mark.parametrize("kept", KEEPING)
@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_every_backend_of_pytorch_closes_its_books(settings, kept):
    result = virtual_device.run("""
        import torch
        start = torch.cuda.mem_get_info()[0]
        model = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in (8, 64, 32, 128):
            model(torch.randn(batch, 128, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), start - torch.cuda.mem_get_info()[0])
        x = torch.arange(1000.0)
        assert (x.cuda().cpu() == x).all()
        del model, optimizer
        torch.cuda.empty_cache()
        print(torch.cuda.memory_reserved() < 120 << 20)
    """, env={**(KEPT_WORKSPACES if kept else {}), **({"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {})})
    first, second = result.stdout.splitlines()
    allocated, reserved, taken = map(int, first.split())
    # Weights and two states of each; cuBLAS's workspaces of two threads and, where it is kept apart, cuBLASLt's.
    workspaces = 2 * 32 * MIB + (MIB if TORCH < (2, 15) else 0) if kept else 0
    assert allocated == 3 * 3_159_040 + workspaces and allocated <= reserved
    if settings != "backend:cudaMallocAsync":
        assert taken == reserved
    assert second == "True"


def test_several_devices():
    virtual_device.run("""
        import torch
        assert torch.cuda.device_count() == 2
        x = torch.arange(8.0)
        a = x.to("cuda:0")
        b = a.to("cuda:1")
        assert (b.cpu() == x).all() and b.device.index == 1
        assert torch.cuda.memory_allocated(0) == torch.cuda.memory_allocated(1) == 512
        with torch.cuda.device(1):
            c = torch.ones(4, device="cuda") @ torch.ones(4, device="cuda")
        assert c.device.index == 1 and torch.cuda.current_device() == 0
        torch.nn.DataParallel(torch.nn.Linear(8, 8).cuda())(torch.randn(4, 8, device="cuda")).sum().backward()
        try:
            torch.ones(1, device="cuda:2")
        except (RuntimeError, AssertionError) as error:
            assert "invalid device" in str(error).lower(), error
        else:
            raise AssertionError
    """, devices=2)


@pytest.mark.parametrize("visible, count", [("0", 1), ("1,0", 2), ("", 0), ("-1", 0), ("0,7,1", 1)])
def test_visible_devices(visible, count):
    script = "import torch; print(torch.cuda.device_count(), torch.cuda.is_available())"
    result = virtual_device.run(script, devices=2, env={"CUDA_VISIBLE_DEVICES": visible})
    assert result.stdout == f"{count} {count > 0}\n"


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_data_loader_workers(start):
    result = virtual_device.run(f"""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, i):
                return torch.full((3, 8, 8), float(i)), i

        if __name__ == "__main__":
            torch.ones(1, device="cuda")
            for x, y in DataLoader(Numbers(), 8, num_workers=2, pin_memory=True, multiprocessing_context="{start}"):
                assert x.is_pinned()
                assert (x.cuda(non_blocking=True).cpu() == x).all()
    """)
    assert result.stderr == "" or "should have made" not in result.stderr


def test_a_forked_child_is_refused_and_harmless():
    result = virtual_device.run("""
        import ctypes, os, torch
        x = torch.arange(4.0).cuda()
        child = os.fork()
        if child == 0:
            runtime = ctypes.CDLL("libcudart.so.13")
            codes = [runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(512)), runtime.cudaDeviceSynchronize()]
            try:
                torch.ones(2, device="cuda")
            except RuntimeError as error:
                assert "forked subprocess" in str(error)
                os._exit(40 + (codes == [3, 3]))
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41
        assert x.cpu().tolist() == [0, 1, 2, 3]
    """)
    assert result.summary is not None


def test_inert_without_a_cuda_call():
    """A program that never asks for a device gets neither output nor a summary, whatever the settings."""
    result = virtual_device.run("print(1)", device="no-such-device")
    assert (result.stdout, result.stderr, result.summary) == ("1\n", "", None)


def test_an_unusable_device_is_said_and_means_no_gpu():
    result = virtual_device.run("import torch; print(torch.cuda.is_available())", device="no-such-device")
    assert result.stdout == "False\n"
    assert "cannot read the device file" in result.stderr


def test_completion_comes_later_when_asked_for_and_nothing_else_changes():
    script = """
        import torch
        torch.manual_seed(0)
        event, polls = torch.cuda.Event(), 0
        x = torch.zeros(100, device="cuda")
        for _ in range(20):
            x = x + 1
            event.record()
            while not event.query():
                polls += 1
        side = torch.cuda.Stream()
        for i in range(50):
            with torch.cuda.stream(side):
                y = torch.empty(1 << 20, dtype=torch.uint8, device="cuda").add_(1)
            y.record_stream(torch.cuda.current_stream())
            y.add_(1)
            del y
        torch.cuda.synchronize()
        assert side.query()
        z = torch.arange(10.0)
        assert (z.cuda().cpu() == z).all()
        print(polls > 0, polls, torch.cuda.memory_reserved())
    """
    at_once = virtual_device.run(script).stdout.split()
    delayed = virtual_device.run(script, delay_seed=11).stdout.split()
    again = virtual_device.run(script, delay_seed=11).stdout.split()
    assert at_once[0] == "False" and delayed[0] == "True"
    assert delayed == again
    assert int(delayed[2]) >= int(at_once[2])   # reuse has to wait for events


def test_a_function_that_is_not_there_says_its_name_once():
    result = virtual_device.run("""
        import ctypes, torch
        torch.cuda.init()
        driver = ctypes.CDLL("libcuda.so.1")
        print([driver.cuLinkComplete(None, None, None) for _ in range(3)])
    """)
    assert result.stdout == "[801, 801, 801]\n"
    assert result.stderr.count("cuLinkComplete") == 1
    assert result.summary is None or "cuLinkComplete" in result.summary["unimplemented"]


def test_dry_run_passes_the_exit_code_and_the_arguments(tmp_path):
    if not virtual_device.TOOL.exists():
        pytest.fail("the tool is not built")
    summary = tmp_path / "device.json"
    script = tmp_path / "script.py"
    script.write_text("import sys, torch; x = torch.ones(1, device='cuda'); print(torch.cuda.get_device_name(), sys.argv[1:]); sys.exit(7)")
    done = subprocess.run([virtual_device.TOOL, "dryrun", "--device", "t4", "--allocator", "native", "--device-report", summary,
                           "--", sys.executable, script, "--batch", "3"], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "Tesla T4 ['--batch', '3']\n"
    assert json.loads(summary.read_text())["device"] == "t4"
    done = subprocess.run([virtual_device.TOOL, "dryrun", "--device", "nothing", "--", "python"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_dry_run_names_a_python_without_the_package(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    (tmp_path / "vramledger").mkdir()  # as where the project was cloned to
    done = subprocess.run([virtual_device.TOOL, "dryrun", "--device", "t4", "--no-trace", "--", sys.executable, "-S", "-E", script],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "", done.stdout
    assert f"the Python '{sys.executable}' has no package vramledger" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_doctor_lists_devices_with_sources_and_what_is_missing():
    if not virtual_device.TOOL.exists():
        pytest.fail("the tool is not built")
    site = next(p for p in sys.path if p.endswith("site-packages"))
    report = json.loads(subprocess.run([virtual_device.TOOL, "doctor", "--json", "--site-packages", site], capture_output=True,
                                       text=True, check=True).stdout)
    assert report["schema"] == "vramledger.doctor/1"
    assert report["torch"].startswith("2.")
    assert {"h100-80gb", "h200", "a100-80gb", "rtx-4090", "t4"} <= {device["id"] for device in report["devices"]}
    assert all(device["sources"]["total_memory_bytes"] for device in report["devices"])
    assert report["imported_functions"] > 500
    missing = [name for names in report["unimplemented"].values() for name in names]
    assert 0 < len(missing) < 60
    assert "cudaMalloc" not in missing and "cudaIpcGetMemHandle" not in missing


def test_the_start_asks_for_nothing_that_is_not_there():
    assert virtual_device.run("import torch; torch.ones(1, device='cuda')").stderr == ""


def test_nvml_answers_as_pytorch_asks():
    result = virtual_device.run("""
        import ctypes, os, torch
        assert not torch.cuda.is_initialized() and torch.cuda.is_available() and torch.cuda.device_count() == 2
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        count, handle = ctypes.c_uint(), ctypes.c_void_p()
        assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 4
        assert nvml.nvmlDeviceGetHandleByIndex_v2(7, ctypes.byref(handle)) == 2
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        assert nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0000:01:00.0", ctypes.byref(handle)) == 0
        memory = (ctypes.c_ulonglong * 3)()
        assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
        assert list(torch.cuda.mem_get_info()) == [memory[1], memory[0]] and memory[2] == (64 + 160 + 512) << 20
        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]
        number, processes = ctypes.c_uint(0), (Process * 4)()
        assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(number), None) == 7 and number.value == 2
        assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(number), processes) == 0
        assert (processes[0].pid, processes[0].used, processes[1].used) == (os.getpid(), 224 << 20, 512 << 20)
        assert nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(number)) == 3
        try:
            torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(error)
    """, devices=4, env={"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_VISIBLE_DEVICES": "0,1",
                         "VRAMLEDGER_VIRTUAL_DEVICE_OTHERS": str(512 * MIB)})
    # PyTorch's own message asks NVML as well.
    assert "this process has 224.00 MiB memory in use" in result.stdout
    assert "has 512.00 MiB memory in use" in result.stdout
