"""Plans of several stages: which device runs what, and how values get from one to the next."""
