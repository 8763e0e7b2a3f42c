"""Plain torch kernels: the obvious version of every op, and the oracle of every other kernel."""
