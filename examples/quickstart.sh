#!/usr/bin/env bash
# From nothing to tokens: sets up .venv once, compiles the toy model, makes a tiny random checkpoint of it, and runs that
# on the CPU. Its weights are random, so what it writes means nothing; that it writes at all is the point.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${OUT:-examples/out}

echo "[1/4] environment: ${VENV:-.venv}" >&2
examples/environment.sh
dsv41c=${VENV:-.venv}/bin/dsv41c
mkdir -p "$out"
echo "[2/4] compiling specs/toy.yaml to $out/toy.plan" >&2
"$dsv41c" compile toy -o "$out/toy.plan"
echo "[3/4] making a random checkpoint in $out/toy.checkpoint" >&2
rm -rf "$out/toy.checkpoint"
"$dsv41c" synth toy -o "$out/toy.checkpoint"
echo "[4/4] running it" >&2
"$dsv41c" run "$out/toy.plan" --checkpoint "$out/toy.checkpoint" --prompt "Once upon a time" -n 24

cat >&2 <<NEXT

what to look at next:
  $out/toy.plan/stage_0.py     the code the compiler wrote: a function a layer, real names
  $out/toy.plan/README.md      how to read, run and change it
  $dsv41c graph toy --select 'compress_kv@L5+'      who reads a state
  $dsv41c run $out/toy.plan --checkpoint $out/toy.checkpoint --prompt hello --compare reference
NEXT
