#!/usr/bin/env bash
# Benchmarks, not tests: prints ratios against the named rival in the same process.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/setup.sh"
set_up
cmake --build "$ROOT/build" --target alloc_pair_bench core_pair_bench
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
# The NVIDIA wheels' folders, which Python would have put in place.
libraries="$(find "$ROOT"/.venv/lib/python3.*/site-packages/nvidia -type d -name lib | paste -sd:)"
say "alloc+free pair, tagged and traced, against PyTorch's native allocator in one process"
VRAMLEDGER_TRACE="$folder/pair.vlt" LD_LIBRARY_PATH="$libraries" \
  "$ROOT/build/bin/vramledger" dryrun --device h100-80gb --allocator native -- "$ROOT/build/bin/alloc_pair_bench" "$ROOT/build/lib/libvramledger_allocator.so" "$@"
"$ROOT/build/bin/vramledger" check "$folder/pair.vlt"
say "the core alone, on the simulated device"
"$ROOT/build/bin/core_pair_bench"
