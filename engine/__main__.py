"""python -m engine."""

import sys

from engine.output import unless_interrupted


def _command() -> int:
    from engine.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(unless_interrupted(_command))
