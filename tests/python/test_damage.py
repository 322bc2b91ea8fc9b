"""Damaged traces: what is readable is shown, then one sentence with the offset and exit code 3."""

from conftest import EXAMPLES


def test_truncated_and_flipped_traces(shared_bench):
    whole = shared_bench.folder / "whole.vlt"
    shared_bench.dryrun(EXAMPLES / "dcgan.py", "--batch", "4", allocator="plugin", trace=whole)
    data = whole.read_bytes()
    cases = {
        "cut": (data[: len(data) * 2 // 3], 3, "is cut off"),
        "flipped": (data[:6000] + bytes([data[6000] ^ 4]) + data[6001:], 3, "is damaged"),
        "empty": (b"", 3, "is empty"),
        "text": (b"loss: 0.5\n" * 100, 3, "neither a vramledger trace nor"),
    }
    for name, (content, code, words) in cases.items():
        path = shared_bench.folder / f"{name}.vlt"
        path.write_bytes(content)
        for command in ("report", "reconcile", "check", "export"):
            done = shared_bench.tool(command, path, check=False)
            assert done.returncode == code, (name, command, done.stderr)
            # The file was closed: no crash is to blame.
            assert "Sound" not in done.stdout and "crash" not in done.stdout, (name, command, done.stdout[:200])
            assert words in done.stderr and done.stderr.count("\n") == 1, (name, command, done.stderr)
    assert shared_bench.tool("report", whole).returncode == 0
