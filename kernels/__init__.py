"""The bottom layer: what ops are (`catalog`), and the kernels that compute them. Imports neither compiler nor runtime."""
