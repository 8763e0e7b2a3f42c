"""GGUF checkpoints: their headers, the families of names and keys, and tensors decoded from their blocks."""
