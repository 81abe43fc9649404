"""The words of an overlap as the engine writes them: oar,ors,oag,cache=4,data."""

from engine.overlap.flags import ALL

FLAGS = ("oar", "ors", "oag", "cache", "data")
NONE = "none"


def flags(overlap: str) -> tuple[str, ...] | None:
    """Give the flags of an overlap's text in the papers' order, the cache without its size; None for what isn't one."""
    words = () if overlap == NONE else tuple(word.partition("=")[0] for word in overlap.split(","))
    return tuple(flag for flag in FLAGS if flag in words) if set(words) <= set(FLAGS) else None


def short(overlap: str) -> str:
    """Return an overlap's text as it is typed: "all" for all of its flags."""
    return "all" if overlap == str(ALL) else overlap
