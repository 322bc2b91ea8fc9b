"""Writes tests/results/cost.md from what run.sh measured: PAIRS_TORCH.json PAIRS_PLUGIN.json PAIRS_OBSERVE.json STEPS.json READING.json > cost.md."""

import json
import os
import platform
import sys


def cpu():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def load(path):
    with open(path) as file:
        return json.load(file)


def by_threads_and_live(pairs, name):
    rows = {}
    for run in pairs["benchmarks"]:
        kind, live, threads = run["name"].split("/")[:3]
        if kind == name:
            rows[int(threads.split(":")[1]), int(live.split(":")[1])] = run
    return rows


def observe_table(pairs):
    native, observed = by_threads_and_live(pairs, "Native"), by_threads_and_live(pairs, "Observed")
    print("| threads | live blocks | native, wall ns a pair | observed | for each event | native, processor ns a pair | observed | for each event |\n|---|---|---|---|---|---|---|---|")
    for (threads, live), before in sorted(native.items()):
        after = observed[threads, live]
        cells = [f"{before[which]:.0f} | {after[which]:.0f} | **{(after[which] - before[which]) / 2:.0f}**" for which in ("ns", "processor_ns")]
        print(f"| {threads} | {live:,} | {' | '.join(cells)} |")


def pair_table(pairs):
    rows = by_threads_and_live(pairs, "PairAgainstNative")
    print("| threads | live blocks | native, wall ns | ours, wall ns | ours / native | native, processor ns | ours, processor ns | ours / native |\n|---|---|---|---|---|---|---|---|")
    for (threads, live), run in sorted(rows.items()):
        print(f"| {threads} | {live:,} | {run['native_ns']:.0f} | {run['ours_ns']:.0f} | **{run['ratio']:.2f}** | {run['native_processor_ns']:.0f} | {run['ours_processor_ns']:.0f} | {run['processor_ratio']:.2f} |")


def main():
    torch, plugin, observe, steps, reading = (load(path) for path in sys.argv[1:6])
    print("# Cost\n")
    print(f"Made by `tests/benchmarks/run.sh` on {cpu()}, {torch['context']['num_cpus']} processors, torch on the virtual device. Load average over the quarter of an hour before the end: {os.getloadavg()[2]:.1f},")
    print("of which the benchmarks themselves are 1 to 2.\n")
    print("## One allocation and its free\n")
    print("Tagged and traced, against PyTorch's native allocator without history in the same process: medians of 40 alternations of 2,000 pairs a thread, eight sizes from 512 B")
    print("to 4 MiB, among live blocks with holes between them. Wall time over the pairs of all threads, and processor time of the process (the compression of the trace included).\n")
    print("Mode `torch`:\n")
    pair_table(torch)
    print("\nMode `plugin`, through `CUDAPluggableAllocator`, whose own table and lock are a part of the figure:\n")
    pair_table(plugin)
    print("\nMode `observe` watches the native allocator; a pair is two events. Native before it is watched, and after (one follows the other, since nothing can be taken off again):\n")
    observe_table(observe)
    print("\n## A training step\n")
    print("A step on the virtual device (kernels do nothing, so what is left is the host's work, of which the allocator is a part). One process of each mode and two of")
    print("PyTorch's own allocator with nothing of ours in them take turns of three steps, in an order drawn anew each round, so that the machine's changes of speed meet all")
    print("alike. `both native` is the mean of the two, and `control` one by the other: what that differs from 0 cannot be told apart here. `interface` is PyTorch's own allocator")
    print("reached through PyTorch's plug-in interface (`native_plugin.cc`), with nothing of ours in it: the table and the lock that PyTorch puts before every plug-in, mode `plugin`'s")
    print("share of which is not ours. Wall time: medians of the rounds, of their ratios for the difference. Processor time: all threads of the process over all rounds, the")
    print("compression of the trace included. The difference is the median over the sets of fresh processes, the range that of the sets.\n")
    print("| model | mode | against | its wall ms | wall ms | difference | range | its processor ms | processor ms | difference | range | sets x steps |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    for row in steps:
        cells = [f"{row[which]['base_ms']:.2f} | {row[which]['ms']:.2f} | **{100 * (row[which]['ratio'] - 1):+.1f} %** | {100 * (row[which]['lowest'] - 1):+.1f} to {100 * (row[which]['highest'] - 1):+.1f}"
                 for which in ("wall", "processor")]
        print(f"| {row['model']} | {row['mode']} | {row['base']} | {' | '.join(cells)} | {row['sets']} x {row['steps']} |")
    print("\n## Reading\n")
    print(f"`report` of a synthetic trace (`make_trace`) of {reading['events']:,} events, {reading['allocations']:,} of them allocations, {reading['file_bytes'] / 2**20:,.0f} MiB on disk:")
    print(f"{reading['seconds']:.2f} s, which is {reading['events'] / reading['seconds'] / 1e6:.1f} million events a second (both passes; the best of {reading['runs']} runs), and "
          f"{reading['peak_memory_bytes'] / 2**20:,.0f} MiB of memory at most, of which {reading['allocations'] / 2**20:.0f} MiB are the category of each allocation.")


main()
