"""Overlap's flags on the command line."""

import pytest

from engine.errors import UsageError
from engine.overlap.flags import ALL, Overlap


def test_flags_are_read_and_written_in_one_form() -> None:
    for text in ("none", "oar", "oar,ors,oag", "cache=28", "oar,ors,oag,cache=auto,data"):
        assert str(Overlap.parse(text)) == text
    assert Overlap.parse("data,oar") == Overlap.parse("oar,data")
    assert Overlap.parse("all") == ALL
    with pytest.raises(UsageError, match=r"--overlap .*'org'"):
        Overlap.parse("oar,org")
    with pytest.raises(UsageError, match=r"--prefetch-depth .* 0 "):
        Overlap(prefetch_depth=0)
