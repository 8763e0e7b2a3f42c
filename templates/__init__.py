"""Data: the jinja templates of plans. Templates hold text; decisions are made in `compiler.plan.lower`."""
