"""Triton kernels run in Triton's interpreter here, which has to be asked for before Triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
