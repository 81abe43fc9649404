"""Tensor modes as colossal-ai calls them, and the words of series, options and published numbers that name one."""

MODES = ("1D", "2D", "2.5D", "3D")
"""1D is Megatron-LM's."""


def of_series(series: object) -> str:
    """Return the mode on which the name of a series ends; another word as it is, in capitals."""
    return str(series).rpartition("-")[2].upper()


def of_option(word: str) -> str:
    """Return the mode of the engine's option, such as 2D of 2d-published; another one as it is."""
    name = word.partition("-")[0].upper()
    return name if name in MODES else word


def of_framework(framework: str) -> str:
    """Return the mode on which the framework of a published number ends."""
    return framework.rpartition(" ")[2]
