#!/usr/bin/env bash
# Benchmarks, not tests (core_pair_bench, built on request, has the core alone): ratios against the named rival, into tests/results/cost.md. BUILD: another build folder; RUNS: runs of the report, and sets of processes for each model.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/setup.sh"
BUILD="${BUILD:-$ROOT/build}"
if [ "$BUILD" = "$ROOT/build" ]; then set_up; fi
cmake --build "$BUILD" --target alloc_pair_bench native_plugin make_trace vramledger vramledger_python vramledger_torch vramledger_stand_ins
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
# The NVIDIA wheels' folders, which Python would have put in place.
libraries="$(find "$ROOT"/.venv/lib/python3.*/site-packages/nvidia -type d -name lib | paste -sd:)"
for mode in torch plugin observe; do
  say "alloc+free pair in mode $mode, tagged and traced, against PyTorch's native allocator in one process"
  case "$mode" in plugin) library=libvramledger_allocator.so ;; *) library=libvramledger_torch.so ;; esac
  VRAMLEDGER_TRACE="$folder/pair.vlt" LD_LIBRARY_PATH="$libraries" \
    "$BUILD/bin/vramledger" dryrun --device h100-80gb --allocator native -- "$BUILD/bin/alloc_pair_bench" "$BUILD/lib/$library" "$mode" \
    --benchmark_out="$folder/pairs_$mode.json" --benchmark_out_format=json "$@"
done
say "a training step with the trace and without"
VRAMLEDGER_LIBRARY="$BUILD/lib/libvramledger_allocator.so" python3 "$ROOT/tests/benchmarks/step_time.py" "$BUILD/bin/vramledger" "$PYTHON" "$folder" "$BUILD/lib/libnative_plugin.so" > "$folder/steps.json"
say "a report of a trace of 20 million events"
"$BUILD/bin/make_trace" "$folder/read.vlt" 20000000
python3 "$ROOT/tests/benchmarks/read_time.py" "$BUILD/bin/vramledger" "$folder/read.vlt" > "$folder/reading.json"
mkdir -p "$ROOT/tests/results"
python3 "$ROOT/tests/benchmarks/write_cost.py" "$folder/pairs_torch.json" "$folder/pairs_plugin.json" "$folder/pairs_observe.json" "$folder/steps.json" "$folder/reading.json" > "$ROOT/tests/results/cost.md"
say "tests/results/cost.md"
