"""`python -m reports build`, and where the program `par4d` begins."""

import sys

from engine.output import unless_interrupted


def _command() -> int:
    from reports.cli import main

    return main()


def _par4d() -> int:
    from reports.par4d import main

    return main()


def par4d() -> int:
    """Run the program `par4d`."""
    return unless_interrupted(_par4d)


if __name__ == "__main__":
    sys.exit(unless_interrupted(_command))
