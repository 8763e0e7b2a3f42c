"""Data: shipped specs and targets.

`<name>.yaml` is a whole model; `targets/<name>.yaml` holds placement, numerics and runtime of a machine.
"""
