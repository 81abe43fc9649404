"""Flags: which communication is hidden behind compute, and how far ahead (axonn-sc24 V-D, par4d IV). No torch."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from math import inf
from typing import Literal

from engine.errors import UsageError
from engine.grid import REPLICATING, SHARDING, SPLITTING_FEATURES, Axis, Grid

LEAST_BYTES = 8e6
"""Bucket that hides best on few ranks: smaller ones cost calls, and larger ones end late."""
HOP_S = 1.4e-5
"""Latency of a message between nodes, as NCCL has it for large ones (Simple, its tuning.cc)."""
LINK_BYTES_PER_S = 25e9
"""Assumed rate of an unknown network: one 200 Gbit/s interface a device."""


def bucket_bytes(ranks: int, link_bytes_per_s: float | None = None, devices_per_node: int = 1) -> float:
    """Return the bytes of a bucket of gradients that is summed over these ranks.

    A ring all-reduce of n bytes over G ranks whose links carry B bytes/s takes 2 (G - 1) (n / (G B) + L) with a latency
    of L a hop (axonn-sc24 Eq. 3 has its first term). At n = 4 G B L a fifth of it is latency: 1.4 MB a rank, where
    Megatron-Core takes a million parameters a rank. link_bytes_per_s: of a node, which its devices share.
    """
    share = link_bytes_per_s / devices_per_node if link_bytes_per_s else LINK_BYTES_PER_S
    return max(LEAST_BYTES, 4 * ranks * share * HOP_S)


AUTO: Literal["auto"] = "auto"
CACHE_SHARE = 0.5
"""Share of the memory left after the first step that cache="auto" takes, unless a budget is given."""
WORDS = "none, all, or a comma list of oar, ors, oag, cache=N, cache=auto and data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Numbers of how far ahead, and how much at once. Raises UsageError for numbers below 1."""

    prefetch_depth: int = 4
    """weights gathered ahead of their use, for oag"""
    reduce_window: int = 4
    """reduce-scatters in flight at once, for ors"""
    bucket_bytes: float | None = None
    """gradients of one all-reduce, for data (default: by ranks and link, 8 MB or more)"""
    cache_bytes: float | None = None
    """for cache=auto (default: half the free memory)"""

    def __post_init__(self) -> None:
        at_least_one = {
            "--prefetch-depth": self.prefetch_depth,
            "--reduce-window": self.reduce_window,
            "--bucket-bytes": self.bucket_bytes,
            "--cache-bytes": self.cache_bytes,
        }
        for option, value in at_least_one.items():
            if value is not None and not 1 <= value < inf:
                raise UsageError(f"{option} is a number from 1 up, but {value} was given.")


@dataclass(frozen=True, slots=True)
class Overlap(Pace):
    """Flags of what hides communication."""

    oar: bool = False
    """all-reduce a layer's input gradient while its weight gradient is computed"""
    ors: bool = False
    """wait late for a weight gradient's reduce-scatter, with at most `reduce_window` in flight"""
    oag: bool = False
    """gather the next `prefetch_depth` weights during compute, in the order of the first step"""
    cache: int | Literal["auto"] = 0
    """with activation checkpointing, keep gathered weights of the last N blocks from the forward to the recomputation;
    "auto": of as many as fit cache_bytes (None: half of the memory left by the first step)
    """
    data: bool = False
    """sum gradients over data in buckets of bucket_bytes during the last backward; without clipping the optimizer steps
    each bucket once it is summed (axonn-ipdps22 V-C, whose chunks these are)
    """

    def __str__(self) -> str:
        words = [flag.name for flag in fields(self) if getattr(self, flag.name) is True]
        if self.cache:
            words.insert(len(words) - self.data, f"cache={self.cache}")
        return ",".join(words) or "none"

    def at(self, pace: Pace) -> "Overlap":
        return replace(self, **{number.name: getattr(pace, number.name) for number in fields(Pace)})

    def bucket(self, grid: Grid, link_bytes_per_s: float | None = None, devices_per_node: int = 1) -> float:
        """Return the bytes of gradients that one all-reduce sums: as given, or what suits the grid."""
        sharing = min(devices_per_node, grid.size)
        return self.bucket_bytes or bucket_bytes(grid.model_replicas, link_bytes_per_s, sharing)

    def auto_blocks(self, free_bytes: float, block_bytes: Sequence[float]) -> int:
        """Count the last blocks that fit the budget of cache="auto". block_bytes: of each block's weights."""
        budget = CACHE_SHARE * max(0.0, free_bytes) if self.cache_bytes is None else self.cache_bytes
        return sum(needed <= budget for needed in accumulate(reversed(block_bytes)))

    @classmethod
    def parse(cls, text: str) -> "Overlap":
        """Read `none`, `all`, or flags such as `oar,ors,oag,cache=4,data`. Raises UsageError."""
        if text == "none":
            return cls()
        if text == "all":
            return ALL
        parsed = cls()
        for word in text.split(","):
            if word in ("oar", "ors", "oag", "data"):
                parsed = replace(parsed, **{word: True})
            elif match := re.fullmatch(r"cache=(auto|\d+)", word):
                parsed = replace(parsed, cache=AUTO if match[1] == AUTO else int(match[1]))
            else:
                raise UsageError(f"--overlap takes {WORDS}, but {word!r} is among {text!r}.")
        return parsed


ALL = Overlap(oar=True, ors=True, oag=True, cache=AUTO, data=True)


HIDDEN_ON: dict[str, tuple[Axis, ...]] = {
    "oar": SPLITTING_FEATURES,
    "ors": (SHARDING,),
    "oag": (SHARDING,),
    "cache": (SHARDING,),
    "data": REPLICATING,
}
"""Every flag, in the order in which a ladder adds them, with the axes of which one needs ranks to hide anything."""


def flags(overlap: Overlap) -> tuple[str, ...]:
    """List the flags that are set, in the order of HIDDEN_ON."""
    return tuple(flag for flag in HIDDEN_ON if getattr(overlap, flag))


def restrict(overlap: Overlap, kept: Iterable[str]) -> Overlap:
    return replace(overlap, **{flag: type(getattr(Overlap(), flag))() for flag in HIDDEN_ON if flag not in kept})


def ladder(full: Overlap) -> list[Overlap]:
    """List overlaps from none to all of these flags, one more each time (par4d Fig. 3)."""
    added = flags(full)
    return [restrict(full, added[:count]) for count in range(len(added) + 1)]


def each_alone(full: Overlap) -> list[Overlap]:
    return [restrict(full, (flag,)) for flag in flags(full)]


def why_useless(flag: str, grid: Grid, *, checkpointed: bool) -> str | None:
    """Return a sentence on why the flag hides nothing there, or None. checkpointed: activations are."""
    axes = HIDDEN_ON[flag]
    if all(grid[axis] == 1 for axis in axes):
        return f"{flag} is left out: grid {grid} has one rank on {' and '.join(axes)}, so there is nothing to hide."
    if flag == "cache" and not checkpointed:
        return "cache is left out: without --checkpoint-activations each weight is gathered only once."
    return None


def drop_useless(asked: Iterable[Overlap], grid: Grid, *, checkpointed: bool) -> tuple[Overlap, ...]:
    """List none and what is left of these without useless flags, each once."""
    found = [Overlap()]
    for overlap in asked:
        useful = [flag for flag in flags(overlap) if why_useless(flag, grid, checkpointed=checkpointed) is None]
        kept = restrict(overlap, useful)
        if useful and kept not in found:
            found.append(kept)
    return tuple(found)
