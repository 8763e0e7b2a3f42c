"""The command line."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return 2
