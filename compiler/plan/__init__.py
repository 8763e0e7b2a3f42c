"""From a checked spec to the files of a plan: compiled, lowered, written as text, put into a folder, compared."""

from dsv41c.compiler.plan.compile import Plan, compile_spec, write_plan

__all__ = ["Plan", "compile_spec", "write_plan"]
