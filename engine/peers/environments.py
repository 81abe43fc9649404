"""Peers whose pins contradict ours have environments of their own: .venv-peers/LIBRARY, made by ci/peers. No torch."""

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from engine.errors import UsageError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-peers"


def python_of(library: str | None) -> Path:
    """Say where a library's Python would be. None is ours."""
    if library is None:
        return Path(sys.executable)
    return FOLDER / library / "bin" / "python"


def lacking(library: str | None) -> str | None:
    """Say what to do where an environment isn't there, or isn't whole; None where it is. None is ours."""
    if library is None or ((FOLDER / library / "par4d-installed").exists() and python_of(library).exists()):
        return None
    with suppress(OSError):
        why = (FOLDER / f"{library}.failed").read_text().strip()
        return f"{library} couldn't be installed here: {why}"
    return f"{library} has no environment here: make it by ci/peers {library}."


def has(library: str | None, module: str) -> bool:
    """Say whether a module, or a package of them, is installed there. None is ours."""
    if library is None:
        return find_spec(module) is not None
    return any((FOLDER / library).glob(f"lib/python3*/site-packages/{module}*"))


def check(library: str | None) -> None:
    """Raises UsageError where a peer's environment isn't there. None is ours."""
    if reason := lacking(library):
        raise UsageError(reason)
