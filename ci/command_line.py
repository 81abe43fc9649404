"""Command lines of ci/: their help is the module's docstring, and what is wrong with one is said in a sentence."""

import argparse
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Parser of `ci/NAME`, or of one of its commands."""

    def __init__(self, prog: str, description: str | None = None, **others: Any) -> None:
        super().__init__(prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **others)

    def error(self, message: str) -> NoReturn:
        """End with 2 and one sentence."""
        script = self.prog.split()[0]
        self.exit(2, f"{script.rpartition('/')[2]}: {message} ({script} --help says what is allowed).\n")
