"""Choose the overlaps that are compared with none: flags added one by one (par4d Fig. 3), and each alone. No torch."""

from collections.abc import Iterable
from dataclasses import replace

from engine.grid import REPLICATING, SHARDING, SPLITTING_FEATURES, Axis, Grid
from engine.overlap.flags import Overlap

HIDDEN_ON: dict[str, tuple[Axis, ...]] = {
    "oar": SPLITTING_FEATURES,
    "ors": (SHARDING,),
    "oag": (SHARDING,),
    "cache": (SHARDING,),
    "data": REPLICATING,
}
"""It has every flag, in the order in which they are added, with the axes of which one needs ranks to hide anything."""


def flags(overlap: Overlap) -> tuple[str, ...]:
    """List the flags that are set, in the order of HIDDEN_ON."""
    return tuple(flag for flag in HIDDEN_ON if getattr(overlap, flag))


def only(overlap: Overlap, kept: Iterable[str]) -> Overlap:
    """Give the same with none but these flags."""
    return replace(overlap, **{flag: type(getattr(Overlap(), flag))() for flag in HIDDEN_ON if flag not in kept})


def ladder(full: Overlap) -> list[Overlap]:
    """List overlaps from none to all of these flags, one more each time."""
    added = flags(full)
    return [only(full, added[:count]) for count in range(len(added) + 1)]


def alone(full: Overlap) -> list[Overlap]:
    """Give each of these flags without the others."""
    return [only(full, (flag,)) for flag in flags(full)]


def why_useless(flag: str, grid: Grid, *, checkpointed: bool) -> str | None:
    """Say in a sentence why the flag hides nothing there; None if it hides something. checkpointed: activations are."""
    axes = HIDDEN_ON[flag]
    if all(grid[axis] == 1 for axis in axes):
        return f"{flag} is left out: grid {grid} has one rank on {' and '.join(axes)}, so there is nothing to hide."
    if flag == "cache" and not checkpointed:
        return "cache is left out: without --checkpoint-activations each weight is gathered only once."
    return None


def effective(asked: Iterable[Overlap], grid: Grid, *, checkpointed: bool) -> tuple[Overlap, ...]:
    """List none and what is left of these without useless flags, each once."""
    found = [Overlap()]
    for overlap in asked:
        useful = [flag for flag in flags(overlap) if why_useless(flag, grid, checkpointed=checkpointed) is None]
        kept = only(overlap, useful)
        if useful and kept not in found:
            found.append(kept)
    return tuple(found)
