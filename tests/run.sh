#!/usr/bin/env bash
# Runs the tests, in .venv (or $VENV) with everything they need installed there first. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
examples/environment.sh dev
# The workers share the cores: each computes on one. They begin with a part of the tests each, in order, so that a plan or
# a fixture that a file shares is mostly made in one of them; who is done first takes over from the other.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "${VENV:-.venv}/bin/python" -m pytest -n "${WORKERS:-2}" --dist worksteal "$@"
