#!/usr/bin/env bash
# Times the released model at full width on the one GPU of the machine it is started on, in less than ten minutes:
#
#     tests/bench/h200.sh RESULTS
#
# RESULTS is a folder; h200.json (`dsv41c bench --json`) and h200.log go there. Nothing is installed and no checkpoint is
# needed: 40 layers with random weights, 128 of 384 experts a layer stored behind the whole gate, which takes a GPU of
# 141 GB. PYTHON names the interpreter, COMMIT the commit where there is no git, BUDGET the seconds after which
# nothing new is begun. SPEC=toy TARGET=cpu tries the script
# itself, on any machine and in seconds.
set -euo pipefail
results=${1:?usage: tests/bench/h200.sh RESULTS}
mkdir -p "$results"
results=$(cd "$results" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
spec=${SPEC:-deepseek-v4.1-flash}
target=${TARGET:-cuda}

. tests/view.sh
export PYTHONUNBUFFERED=1

if [ "$spec" = deepseek-v4.1-flash ]; then
  sets=(--set runtime.max_context=131072 --set runtime.max_sessions=8 --set "runtime.decode_buckets=[1,8]"
    --set runtime.prefill_chunk=8192)
  measured=(--stored-experts 128 --steps 50 --rounds 7 --budget "${BUDGET:-420}" --profile
    --cell batch=1,context=1024 --cell batch=1,context=131072 --cell batch=8,context=1024
    --prefill 8192 --prefill 32768)
else
  sets=()
  measured=(--steps 2 --rounds 1 --cell batch=1,context=20 --cell batch=2,context=64 --prefill 32:tail)
fi

commit=${COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
clocks() {  # what else runs there, and how fast the GPU is clocked
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used --format=csv \
    2>/dev/null || echo "no nvidia-smi"
}
{
  echo "commit $commit, spec $spec, target $target"
  clocks
  "$python" -m dsv41c compile "$spec" -o "$view/plan" --target "$target" ${sets[@]+"${sets[@]}"}
  "$python" -m dsv41c bench "$view/plan" "${measured[@]}" --label "commit $commit" --json >"$view/result.json"
  clocks
} 2>&1 | tee "$results/h200.log"
mv "$view/result.json" "$results/h200.json"
