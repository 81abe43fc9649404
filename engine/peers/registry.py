"""Peers that files of known/ describe. No torch in it.

Each file has COMPARISONS, MEMORY with a row for each of them, and OPTIONS where its library is set to something.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.peers import known
from engine.peers.comparison import Comparison, Habits, Option
from engine.result import ANOTHER_COMMIT, UNTUNED

_FILES = [import_module(f"{known.__name__}.{file.name}") for file in pkgutil.iter_modules(known.__path__)]

COMPARISONS: Mapping[str, Comparison] = {
    comparison.name: comparison
    for comparison in sorted(
        (comparison for file in _FILES for comparison in file.COMPARISONS),
        key=lambda one: (bool(one.splits), one.grid.size),
    )
}
"""By name: those in processes of the engine come first, and those of fewer ranks."""

OPTIONS: Mapping[str, Mapping[str, Mapping[str, Option]]] = {
    peers: sections for file in _FILES for peers, sections in getattr(file, "OPTIONS", {}).items()
}
"""By the name of a comparison or with which it begins, by what takes them (a class, a function, a file, or the
environment of its processes, environ), and by their own.
"""

MEMORY: Mapping[str, Habits] = {name: habits for file in _FILES for name, habits in file.MEMORY.items()}
"""By the name of a comparison."""

ALONE = tuple(name for name, comparison in COMPARISONS.items() if not comparison.splits and not comparison.axes)
"""Peers that take one device."""

OWN_COMPARISON = Comparison(
    UNTUNED,
    "the engine without its tuner",
    Grid(),
    "engine.peers.ours:Ours",
    tuple(axis.value for axis in Axis),
    target=None,
    tunes=True,
    together=True,
)
"""Shows what a tuned engine gains over itself. It is no one else's, so it is run only where it is named."""


def another_commit(checkout: Path) -> Comparison:
    """Compare with the engine of another commit, in that folder, with all that ours is set to. Raises UsageError where
    that commit can't be asked.
    """
    if not (checkout / "engine" / "peers" / "pickled.py").is_file():
        raise UsageError(f"{checkout} has no engine that can be a peer: take the folder of a commit that can.")
    peer = "the engine of another commit"
    return replace(OWN_COMPARISON, name=ANOTHER_COMMIT, peer=peer, tunes=False, checkout=str(checkout.resolve()))
