"""What goes wrong while a step runs, told as findings: the op, the value, whose tokens, and the place in the spec."""
