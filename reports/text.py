"""How numbers and foreign strings are read and written: units, percentages, clean text, safe file names."""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from engine import yaml_text

T = TypeVar("T")
DAY = 86400.0
_SI = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


def clean(text: str, limit: int = 400) -> str:
    """Write one line of printable text: characters of control, of direction, and of no meaning, which XML can't have,
    become U+FFFD, and a long one is cut with "…".
    """
    if text.isprintable() and len(text) <= limit:
        return text
    kept = "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cf", "Cn", "Cs") else char for char in text)
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def slug(text: str) -> str:
    """Write a file name's part made of a-z, 0-9 and "-" only, never empty, at most 40 characters."""
    ascii_only = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_only).strip("-")[:40].strip("-") or "x"


def slugs(texts: Iterable[str]) -> list[str]:
    """Return the slug of each, set apart by a number where two are alike."""
    taken: list[str] = []
    for one in map(slug, texts):
        free = (name for n in itertools.count(1) if (name := one if n == 1 else f"{one}-{n}") not in taken)
        taken.append(next(free))
    return taken


@cache
def _words() -> dict[str, Any]:
    return dict(yaml_text.read(Path(__file__).with_name("words.yaml")))


def paragraphs(section: str, **values: object) -> tuple[str, ...]:
    """Return the paragraphs of a section of words.yaml, with these values in place of the names in braces."""
    words = _words()[section]
    return tuple(each.format(**values) for each in ([words] if isinstance(words, str) else words))


def titled(parts: Iterable[T], title: Callable[[T], str]) -> list[tuple[str, str, T]]:
    """Return each part of a page with its name, which no other has, and its title."""
    listed = [(title(part), part) for part in parts]
    names = slugs(words for words, _ in listed)
    return [(name, words, part) for name, (words, part) in zip(names, listed, strict=True)]


def title(system: str, *words: str) -> str:
    """Write the title of a part of a page: the system's name, then whatever else is known."""
    return clean(", ".join(word for word in (system or "unnamed system", *words) if word), 120)


def count(value: float) -> str:
    """Write a whole number with thousands set apart: 32,768. One that isn't whole keeps a digit."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def significant(value: float, digits: int = 4) -> str:
    """Write a number to so many significant digits, without an exponent where one can do without.

    >>> significant(17.91274), significant(1019.9), significant(0.0421358)
    ('17.91', '1,020', '0.04214')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -5 <= exponent < 15:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def prefix(value: float) -> tuple[float, str]:
    """Return the SI prefix that suits a value, as (factor, letter): 5.7e14 -> (1e12, "T")."""
    if not math.isfinite(value) or value == 0:
        return 1.0, ""
    exponent = min(18, max(-9, 3 * math.floor(math.log10(abs(value)) / 3)))
    return 10.0**exponent, _SI[exponent]


def si(value: float, unit: str, digits: int = 4) -> str:
    """Write a value with its unit and SI prefix: 571.4 Pflop/s."""
    factor, letter = prefix(value)
    return f"{significant(value / factor, digits)} {letter}{unit}"


flops = partial(si, unit="flop/s")
joules = partial(si, unit="J")
watts = partial(si, unit="W")
scaled = partial(si, unit="")
flops_per_joule = partial(si, unit="flop/J")
rate = partial(si, unit="B/s", digits=3)
size = partial(si, unit="B", digits=3)
"""Bytes are written in powers of 1000, as bandwidths count them."""


def seconds(value: float) -> str:
    """Write a time: seconds from one up, milli- or microseconds below."""
    return f"{significant(value)} s" if value >= 1 else si(value, "s")


def duration(value: float) -> str:
    """Write seconds of a whole training as people say it: hours, days, months (of 30.4 days) or years.

    >>> duration(25.5 * 86400), duration(5400)
    ('25.5 days', '1.50 hours')
    """
    for unit, length, most in (("hours", 3600.0, 48), ("days", DAY, 91), ("months", 365.25 / 12 * DAY, 48)):
        if value < most * length:
            return seconds(value) if unit == "hours" and value < 3600 else f"{significant(value / length, 3)} {unit}"
    return f"{significant(value / (365.25 * DAY), 3)} years"


def tokens(value: float) -> str:
    """Write a number of tokens as people say it: 2 trillion tokens."""
    for word, factor in (("trillion ", 1e12), ("billion ", 1e9), ("million ", 1e6)):
        if value >= factor:
            return f"{value / factor:,.4g} {word}tokens"
    return f"{count(value)} tokens"


def memory(value: float) -> str:
    """Write bytes of memory in GiB, or MiB below one."""
    return f"{significant(value / 2**30, 3)} GiB" if value >= 2**30 else f"{significant(value / 2**20, 3)} MiB"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def of_empirical(value: float) -> str:
    """Write a share of an empirical peak, and mark one that is more than all of it."""
    return f"{percent(value)}, above" if value > 1 else percent(value)


def points(value: float) -> str:
    """Write a difference of shares in points of per cent."""
    return f"{100 * value:.2f} points"


def gain(value: float) -> str:
    """Write a part saved as a percentage, with a minus sign where it is a loss."""
    return percent(value).replace("-", "\u2212")


def signed(value: float) -> str:
    """Write a relative error as a percentage with its sign: +3.1 %."""
    return f"{100 * value:+.1f} %".replace("-", "\u2212")


def times(value: float) -> str:
    """Write a factor: 1.25x."""
    return f"{value:.2f}x"


def tiny(value: float) -> str:
    """Write a relative difference: 3.1e-07."""
    return f"{value:.1e}"


def ratio(value: float) -> str:
    """Write a ratio near one: 0.871."""
    return f"{value:.3f}"


def span(low: float, high: float) -> str:
    """Write an interval of a ratio: 0.862 to 0.880."""
    return f"{ratio(low)} to {ratio(high)}" if low == low and high == high else "not known"


def moment(value: datetime) -> str:
    """Write a point in time, to the second, in UTC."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"


def plural(count: int, noun: str) -> str:
    """1 job, 2 jobs, 1,024 jobs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number(value: float | str | None) -> float:
    """Say what a result has as a number: a finite one, or NaN."""
    try:
        read = math.nan if value is None else float(value)
    except (OverflowError, ValueError):
        return math.nan
    return read if math.isfinite(read) else math.nan


def positive(value: float | str | None) -> float:
    """Return a measured time or rate, which is more than zero, or NaN."""
    read = number(value)
    return read if read > 0 else math.nan
