#!/usr/bin/env bash
# Benchmarks, not tests: prints ratios against the named rival in the same process. Needs tools/demo.sh or tests/run.sh to have built.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/setup.sh"
set_up
export VRAMLEDGER_TRACE="${VRAMLEDGER_TRACE:-$(mktemp -d)/pair.vlt}"
say "alloc+free pair, tagged and traced, against PyTorch's native allocator"
"$ROOT/build/bin/vramledger" dryrun --device h100-80gb -- "$ROOT/build/bin/alloc_pair_bench" "$ROOT/build/lib/libvramledger_allocator.so" "$@"
"$ROOT/build/bin/vramledger" check "$VRAMLEDGER_TRACE"
