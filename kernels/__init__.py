"""The bottom layer: what ops are (`catalog`), and the kernels that compute them. No compiler, no runtime here."""
