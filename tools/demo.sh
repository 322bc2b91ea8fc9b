#!/usr/bin/env bash
# The main job on real input: three real models trained by the official CUDA build of PyTorch with vramledger's allocator, on a
# virtual device where there is no GPU, and the report on each. Traces and reports stay in out/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
started=$SECONDS
set_up vramledger vramledger_python vramledger_stand_ins
OUT="$ROOT/out"
mkdir -p "$OUT"
TOOL="$ROOT/build/bin/vramledger"
EXAMPLES="$ROOT/tools/examples"

train() {  # train NAME SCRIPT ARGS...: writes out/NAME.vlt and out/NAME.report.txt
  local name="$1" script="$2"
  shift 2
  say "training $name on a virtual ${DEVICE:-h100-80gb}: $script $*"
  "$TOOL" dryrun --device "${DEVICE:-h100-80gb}" --trace "$OUT/$name.vlt" -- "$PYTHON" "$EXAMPLES/$script" "$@"
  "$TOOL" report "$OUT/$name.vlt" >"$OUT/$name.report.txt"
  "$TOOL" report "$OUT/$name.vlt" --json >"$OUT/$name.report.json"
}

train dcgan dcgan.py --batch 128
train resnet50_b32 resnet50.py --batch 32
train bert_b64 bert.py --batch 64
train bert_b32 bert.py --batch 32

say "DCGAN: peak per training half-step"
cat "$OUT/dcgan.report.txt"
say "ResNet-50, batch 32"
cat "$OUT/resnet50_b32.report.txt"
say "What fits a 24 GiB card (from the two BERT runs)"
"$TOOL" advise "$OUT/bert_b32.vlt" --second "$OUT/bert_b64.vlt" --capacity 24GiB | tee "$OUT/bert.advice.txt"
say "BERT-base, batch 32: where every byte was (traces and reports are in out/, $((SECONDS - started)) s)"
"$TOOL" reconcile "$OUT/bert_b32.vlt" | tee "$OUT/bert_b32.reconcile.txt"
