"""Checkpoints: what their headers hold, how that matches a plan, and the tensors bound from it."""
