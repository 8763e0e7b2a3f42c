#!/usr/bin/env bash
# Runs the tests that need a GPU, on the machine it is started on, with the torch and the packages that are there.
# Nothing is installed: the tree is read through links, laid out as an installed package. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
. tests/view.sh
"$python" -c "import torch; print('torch', torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU')"
"$python" -m pytest tests/device -q -p no:cacheprovider "$@"
