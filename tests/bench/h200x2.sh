#!/usr/bin/env bash
# Places the released model at full width on the two GPUs of the machine it is started on, in less than ten minutes:
#
#     tests/bench/h200x2.sh RESULTS
#
# RESULTS is a folder: h200x2.log has everything, the JSON files are of `dsv41c bench --json`. First the tests of
# tests/device/test_stages.py, then decode steps and prompts, timed by the wall with logits on the host, in two stages
# (20/20 and 22/18; one process that drives both GPUs, and a process for each over NCCL), and with every stage split
# over both; each by turns with the same on one GPU. Weights are random, 32 of 384 experts a layer behind the whole
# gate, so that every plan has them; a step of one session moves what it would with all. Nothing is installed. PYTHON,
# COMMIT as in h200.sh.
# TESTS=no leaves the tests out; SPEC=toy tries the script on CPUs, in seconds, with one plan of two stages.
set -euo pipefail
results=${1:?usage: tests/bench/h200x2.sh RESULTS}
mkdir -p "$results"
results=$(cd "$results" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
spec=${SPEC:-deepseek-v4.1-flash}

. tests/view.sh
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
commit=${COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}

compile() {  # NAME, changes
  local name=$1
  shift
  "$python" -m dsv41c compile "$spec" -o "$view/$name" "${sets[@]}" "$@" >/dev/null 2>&1
}
bench() {  # NAME, PROCESSES (0: this one, without torchrun), RESULT, options; AGAINST is the plan on one device
  local name=$1 count=$2 result=$3 start=(timeout 150 "$python" -m)
  shift 3
  [ "$count" = 0 ] || start+=(torch.distributed.run --standalone --nproc-per-node "$count" -m)
  echo "== $result"
  "${start[@]}" dsv41c bench "$view/$name" --against "$view/${AGAINST:-one}" "${measured[@]}" "$@" \
    --label "commit $commit" --json >"$results/h200x2-$result.json" 2>"$view/said" || { tail -n 30 "$view/said"; return 1; }
  "$python" tests/bench/h200x2.py "$results" "$result"
}

if [ "$spec" = deepseek-v4.1-flash ]; then
  sets=(--target cuda --set runtime.max_context=40960 --set runtime.max_sessions=2 --set "runtime.decode_buckets=[1]"
    --set runtime.prefill_chunk=4096)
  measured=(--stored-experts 32 --steps 50 --rounds 5 --cell "batch=1,context=1024")
  prompt=(--prefill 32768:every)
else
  sets=(--set runtime.max_sessions=2)
  measured=(--steps 2 --rounds 1 --cell "batch=1,context=20")
  prompt=(--prefill 32:every)
fi
family=$([ "$spec" = deepseek-v4.1-flash ] && echo cuda || echo cpu)
devices="placement.devices=[\"$family:0\",\"$family:1\"]"

{
  echo "commit $commit, spec $spec"
  nvidia-smi --query-gpu=index,name,driver_version,clocks.sm,memory.used --format=csv 2>/dev/null || echo "no nvidia-smi"
  if [ "$family" = cuda ]; then
    if [ "${TESTS:-yes}" = yes ]; then
      "$python" -m pytest tests/device/test_stages.py -q -s -p no:cacheprovider 2>&1 | tail -n 40
    fi
    compile one
    compile one-all --set runtime.capture=all
    compile even --set "$devices" --set "placement.layer_ends=[20,40]"
    compile uneven --set "$devices" --set "placement.layer_ends=[22,40]"
    compile shards --set placement.tensor_parallel=2
    compile shards-all --set placement.tensor_parallel=2 --set runtime.capture=all
    bench shards 2 shards "${prompt[@]}"
    AGAINST=one-all bench shards-all 2 shards-all
    bench even 0 even-both "${prompt[@]}"
    bench even 2 even "${prompt[@]}"
    bench uneven 0 uneven-both
    bench uneven 2 uneven
  else
    compile one
    compile even --set "$devices" --set "placement.layer_ends=[3,8]"
    bench even 0 even-both "${prompt[@]}"
  fi
  "$python" tests/bench/h200x2.py "$results"
} 2>&1 | tee "$results/h200x2.log"
