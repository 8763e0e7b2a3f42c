#!/usr/bin/env bash
# Runs the tests, in .venv (or $VENV) with everything they need installed there first. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
examples/environment.sh dev
# The workers share the cores: each computes on one.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "${VENV:-.venv}/bin/python" -m pytest -n "${WORKERS:-2}" "$@"
