"""Every public function of PyTorch's memory interfaces under the three modes, as a table: tests/results/torch_api.md."""

from pathlib import Path

from conftest import ROOT, TORCH

SCRIPT = Path(__file__).with_name("memory_api.py")
MODES = ("plugin", "torch", "observe")

# What PyTorch refuses, or this machine has no means for, with its own allocator just as well.
REFUSED_ANYHOW = {"torch.cuda.memory.change_current_allocator", "torch.cuda.memory.list_gpu_processes"}
# What it refuses an allocator that comes through the plug-in interface; the sentence then says what to do instead.
REFUSED_TO_PLUGINS = {"torch.cuda.memory.MemPool", "torch.cuda.memory.use_mem_pool", "torch.cuda.memory.memory_snapshot", "torch.cuda.memory._record_memory_history, _dump_snapshot"}


def test_the_table_of_memory_functions(bench):
    answers = bench.answers(SCRIPT, MODES)

    rows = ["| function | " + " | ".join(MODES) + " |", "|---" * 4 + "|"]
    for name in answers["torch"]:
        cells = [answers[mode][name].replace("|", "\\|").replace(str(ROOT), ".") for mode in MODES]
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    text = ("# PyTorch's memory functions under vramledger\n\nMade by `tests/python/test_memory_api.py`, on the virtual device. Each function is called once; what does "
            "not work shows its refusal.\n`list_gpu_processes` needs NVIDIA's management library. A change of the allocator is refused once there is one in use.\n\n"
            + "\n".join(rows) + "\n")
    if TORCH == (2, 11):  # the table is that of the PyTorch that tests/run.sh runs on
        (ROOT / "tests" / "results" / "torch_api.md").write_text(text)

    for mode in ("torch", "observe"):
        refused = {name for name, answer in answers[mode].items() if answer != "works"}
        assert refused <= REFUSED_ANYHOW, mode
    refused = {name for name, answer in answers["plugin"].items() if answer != "works"}
    assert refused <= REFUSED_ANYHOW | REFUSED_TO_PLUGINS
    for name in REFUSED_TO_PLUGINS:
        assert "mode 'torch' has it, and so has mode 'observe'" in answers["plugin"][name], name
