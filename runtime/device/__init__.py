"""Device families behind one protocol: calls on the CPU, graphs on CUDA and ROCm, a strict stand-in for all."""
