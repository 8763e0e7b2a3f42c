#!/usr/bin/env bash
# Sets up a virtual environment once: $VENV, or .venv in the repository. Does nothing where it is complete already.
#   environment.sh          what running needs
#   environment.sh dev      and what the tests need
# torch comes first and by itself: a bare dependency on it may pull a build for GPUs of several gigabytes. To use another
# build, make the environment yourself and install that build there before you run this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}
extra=${1:-}

has() { "$venv/bin/python" -c "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))" "$@"; }

if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -c 'import sys; sys.exit("dsv41c needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
  echo "making $venv" >&2
  "${PYTHON:-python3}" -m venv "$venv"
fi
if ! has torch; then
  echo "installing torch" >&2
  "$venv/bin/python" -m pip install --quiet "torch==2.13.0"
fi
if ! has dsv41c; then
  echo "installing dsv41c" >&2
  "$venv/bin/python" -m pip install --quiet --editable .
fi
if [ "$extra" = dev ] && ! has pytest xdist hypothesis jsonschema mypy importlinter build $([ "$(uname)" != Linux ] || echo triton); then
  echo "installing what the tests need" >&2
  "$venv/bin/python" -m pip install --quiet --editable ".[dev]"
fi
