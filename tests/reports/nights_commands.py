"""`par4d reference make` and `par4d verdict` on a database of frontier's nights: their exit codes."""

from pathlib import Path

from reports.par4d import main


def make(database: Path, *words: str) -> int:
    return main(["reference", "make", "--system", "frontier", "--database", str(database), *words])


def verdict(database: Path, *words: str) -> int:
    return main(["verdict", "--system", "frontier", "--database", str(database), *words])
