"""Writes tests/results/cost.md from what run.sh measured: PAIRS.json STEPS.json READING.json > cost.md."""

import json
import os
import platform
import sys


def cpu():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def main():
    with open(sys.argv[1]) as f:
        pairs = json.load(f)
    with open(sys.argv[2]) as f:
        steps = json.load(f)
    with open(sys.argv[3]) as f:
        reading = json.load(f)
    rows = {}
    for run in pairs["benchmarks"]:
        live, threads = (int(part.split(":")[1]) for part in run["name"].split("/")[1:3])
        rows[threads, live] = run
    print("# Cost\n")
    print(f"Made by `tests/benchmarks/run.sh` on {cpu()}, {pairs['context']['num_cpus']} processors with other work on them")
    print(f"(load average {os.getloadavg()[2]:.1f} over the last quarter of an hour, so that figures of several threads, and of steps, are rough), torch on the virtual device.\n")
    print("## One allocation and its free\n")
    print("Tagged and traced, through `CUDAPluggableAllocator`, against PyTorch's native allocator without history in the same process: medians of 40 alternations of")
    print("2,000 pairs a thread, eight sizes from 512 B to 4 MiB, among live blocks with holes between them. Wall time over the pairs of all threads, and processor time of the process")
    print("(the compression of the trace included).\n")
    print("| threads | live blocks | native, wall ns | ours, wall ns | ours / native | native, processor ns | ours, processor ns | ours / native |\n|---|---|---|---|---|---|---|---|")
    for (threads, live), run in sorted(rows.items()):
        print(f"| {threads} | {live:,} | {run['native_ns']:.0f} | {run['ours_ns']:.0f} | {run['ratio']:.2f} | {run['native_processor_ns']:.0f} | {run['ours_processor_ns']:.0f} | {run['processor_ratio']:.2f} |")
    print("\n## A training step\n")
    print("Host time of a step on the virtual device (kernels do nothing, so what is left is the host's work, of which the allocator is a part): the lower")
    print("quartile of the steps of a run, runs with and without alternating, medians over them. `native` is PyTorch's own allocator with nothing of ours in the process.\n")
    print("| model | mode | native, ms | traced, ms | difference | runs of each |\n|---|---|---|---|---|---|")
    for row in steps:
        print(f"| {row['model']} | {row['mode']} | {row['native_ms']:.2f} | {row['traced_ms']:.2f} | {100 * (row['ratio'] - 1):+.1f} % | {row['runs']} |")
    print("\n## Reading\n")
    print(f"`report` of a synthetic trace (`make_trace`) of {reading['events']:,} events, {reading['allocations']:,} of them allocations, {reading['file_bytes'] / 2**20:,.0f} MiB on disk:")
    print(f"{reading['seconds']:.2f} s, which is {reading['events'] / reading['seconds'] / 1e6:.1f} million events a second (both passes; the best of {reading['runs']} runs), and "
          f"{reading['peak_memory_bytes'] / 2**20:,.0f} MiB of memory at most, of which {reading['allocations'] / 2**20:.0f} MiB are the category of each allocation.")


main()
