"""Benchmarks of a plan on the device it is for: what had to move, how long it took, and what else would have taken."""
