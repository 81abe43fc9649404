"""Read a library's configuration option by option: what no adapter asks for is refused by name. No torch."""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from engine.errors import UsageError
from engine.models.adapters.no_matter import matters_not, says_nothing

T = TypeVar("T", int, float, bool, str)

MOST_LETTERS = 80
"""So much of a value stands in a sentence."""


class Options:
    """These are a library's options. of: whose they are, for sentences. given: by name; None is not given."""

    def __init__(self, of: str, given: Mapping[str, Any], *, all_matter: bool = False) -> None:
        self._of, self._given = of, given
        self._left = {
            name: value for name, value in given.items() if value is not None and (all_matter or not matters_not(name))
        }

    def __bool__(self) -> bool:
        """Say whether there are options that nobody has asked for yet."""
        return bool(self._left)

    def take(self, name: str, default: T | None = None) -> T:
        """Take an option's value. Raises UsageError if it isn't given and has no default, or is of another type."""
        value: Any = self._left.pop(name, default)
        if value is None:
            raise UsageError(f"{self._of} says nothing of {name}: complete its configuration.")
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        kind = int if default is None else type(default)
        if not _is(value, kind):
            raise UsageError(f"{self._of} has {name}={value!r}, but that is to be of type {kind.__name__}: correct it.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{self._of} has {name}={value}, but that is to be finite: correct it.")
        return value

    def positive(self, name: str, default: float) -> float:
        """Take a number above 0. Raises UsageError for another."""
        value = self.take(name, default)
        if value <= 0:
            raise UsageError(f"{self._of} has {name}={value:g}, but that is to be above 0: correct it.")
        return value

    def count(self, name: str, default: int) -> int:
        """Count a mapping's entries, or read a count, whether or not it matters otherwise."""
        value = self._given.get(name)
        return len(value) if isinstance(value, Mapping) else value if type(value) is int else default

    def require_given(self, name: str, *allowed: object) -> None:
        """Raise UsageError if an option that may matter to this network alone is given and has none of these values."""
        if (value := self._given.get(name)) is not None and value not in allowed:
            raise self.refusal(f"{name}={value!r}", " or ".join(f"{one!r}" for one in allowed))

    def one_of(self, name: str, known: Mapping[str, str], default: str) -> str:
        """Take what a word means. Raises UsageError for one that isn't known."""
        return known[self.known(name, known, default)]

    def known(self, name: str, known: Collection[str], default: str) -> str:
        """Take one of some words. Raises UsageError for another."""
        self.require(name, *known, default=default, keep=True)
        return self.take(name, default)

    def several(self, name: str, default: tuple[T, ...]) -> tuple[T, ...]:
        """Take a list. Raises UsageError if it is none, is empty, or has values of another type than the default's."""
        values: Any = self._left.pop(name, default)
        kind = type(default[0])
        if not isinstance(values, list | tuple) or not values or not all(_is(value, kind) for value in values):
            raise UsageError(f"{self._of} has {name}={values!r}, but that is to list some {kind.__name__}: correct it.")
        return tuple(values)

    def says_none(self, name: str) -> bool:
        """Say whether it is given as None, where that isn't what it is by default."""
        return name in self._given and self._given[name] is None

    def refuse_none(self, name: str, known: object) -> None:
        """Raise UsageError if it is."""
        if self.says_none(name):
            raise self.refusal(f"{name}=None", f"{known!r}")

    def given(self, name: str, like: T) -> T | None:
        """Take a value, of the type of like, or None where it isn't given."""
        return self.take(name, like) if name in self._left else None

    def given_positive(self, name: str) -> float | None:
        """Take a number above 0, or None where it isn't given. Raises UsageError for another."""
        return self.positive(name, 1.0) if name in self._left else None

    def same(self, values: Mapping[str, T | None], default: T) -> T:
        """Give the one value that places have, by name; None where they have none. Raises UsageError if they differ."""
        found = {place: value for place, value in values.items() if value is not None}
        if len(set(found.values())) > 1:
            both = " and ".join(f"{place}={value!r}" for place, value in found.items())
            raise UsageError(f"{self._of} has {both}, which contradict each other: keep the one that is meant.")
        return next(iter(found.values()), default)

    def within(self, *names: str) -> "tuple[str, Options]":
        """Take options that are given together, under one of these names or under several alike, and that name."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in names:
            if value := self._left.pop(name, {}):
                if not isinstance(value, Mapping):
                    raise UsageError(f"{self._of} has {name}={value!r}, but that is to be a mapping: correct it.")
                found[name] = value
        if any(value != next(iter(found.values())) for value in found.values()):
            raise UsageError(
                f"{self._of} has {' and '.join(found)}, which contradict each other: keep the one that is meant."
            )
        place = next(iter(found), names[0])
        return place, Options(f"{place} of {self._of}", found.get(place, {}), all_matter=True)

    def require(self, name: str, *allowed: object, default: object, keep: bool = False) -> None:
        """Raise UsageError unless it has one of these values."""
        value = self._left.get(name, default) if keep else self._left.pop(name, default)
        if value not in allowed:
            raise self.refusal(f"{name}={value!r}", " or ".join(f"{one!r}" for one in allowed))

    def require_off(self, *names: str) -> None:
        """Raise UsageError for one of these that is on; they are off where nothing is said of them."""
        for name in names:
            self.require(name, False, default=False)

    def forget(self, *names: str) -> None:
        """Forget options that change nothing, whatever they are."""
        for name in names:
            self._left.pop(name, None)

    def refusal(self, what: str, known: str) -> UsageError:
        """Make the error of an option whose value isn't known."""
        return UsageError(f"{self._of} has {what}, which can't be trained here: only {known} can.")

    def finish(self) -> None:
        """Raise UsageError if there are options that nobody has asked for."""
        for name, value in self._left.items():
            if says_nothing(name, value):
                continue
            raise UsageError(
                f"{self._of} has {name}={_short(value)}, an option that no adapter knows and that might change the "
                "network: remove it if it doesn't."
            )

    def dropout(self, names: Collection[str], inside: Collection[str], default: float, override: float | None) -> float:
        """Take dropout of embedding and projections, which must be alike; none may be inside (of attention).

        override: what to take instead, whatever is configured.
        """
        rates = {name: self.take(name, default) for name in (*names, *inside)}
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise UsageError(f"{self._of} has {name}={rate:g}, but that is to be from 0 to below 1: correct it.")
        if override is not None:
            return override
        within = {name: rate for name, rate in rates.items() if name in inside and rate}
        others = {rates[name] for name in names}
        if within or len(others) > 1:
            listed = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
            raise UsageError(
                f"{self._of} has {listed}, but dropout here is the same everywhere and never inside attention: set "
                "them so, train what is in eval mode, or give --dropout."
            )
        return others.pop() if others else 0.0


def _short(value: object) -> str:
    words = repr(value)
    return words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]}\u2026"


def _is(value: object, kind: type) -> bool:
    """Say whether it is of this very type: True is no number here."""
    return type(value) is kind
