"""`python -m dsv41c`: the same as the `dsv41c` command."""

from dsv41c.compiler.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
