"""Data: the jinja templates of plans, and those of the viewer with its styles and scripts.

Templates hold text; decisions are made in `compiler.plan.lower` and `compiler.draw`.
"""
