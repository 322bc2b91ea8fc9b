#!/usr/bin/env bash
# All tests, from nothing: sets up, builds, then the C++ tests and the tests on the real PyTorch wheel.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tools/setup.sh"
started=$SECONDS
set_up
say "C++ tests"
ctest --test-dir "$ROOT/build" --output-on-failure -j 2
say "tests on PyTorch $TORCH_VERSION on the virtual device"
cd "$ROOT"
"$PYTHON" -m pytest tests/python
say "all tests passed in $((SECONDS - started)) s"
