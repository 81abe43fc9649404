"""Options of a library's configuration, read one by one: what no adapter asks for is refused by name. No torch."""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from engine import yaml_text
from engine.errors import UsageError

T = TypeVar("T", int, float, bool, str)

MOST_LETTERS = 80
"""Letters of a value that an error repeats."""
IGNORED: Mapping[str, frozenset[str]] = {
    where: frozenset(names)
    for where, names in yaml_text.parse((Path(__file__).parent / "ignored.yaml").read_text()).items()
}
"""Options that change nothing of a training step's numbers, whatever their value."""
IGNORED_OF_TRANSFORMERS = IGNORED["network"] | IGNORED["generation"] | IGNORED["notes"]
PRIVATE = "_"
"""Beginning of names that transformers keeps for itself."""
ENDS = ("_token_id", "_token_ids", "_token_index", "_version")
READ_BY_ADAPTERS = ("pad_token_id",)
"""Rows of a table learn nothing where this token stands."""
DROPPING = ("dropout", "dropout_prob", "dropout_rate", "drop_rate", "pdrop", "layerdrop")
OFF = ("add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder", "is_decoder", "quantized", "is_quantized")


class Options:
    """Options of a configuration by name, of which None counts as not given."""

    def __init__(self, owner: str, given: Mapping[str, Any], *, all_matter: bool = False) -> None:
        """Leave out what changes nothing, unless all_matter. owner: in error messages."""
        self._owner, self._given = owner, given
        self._left = {
            name: value for name, value in given.items() if value is not None and (all_matter or not _is_ignored(name))
        }

    def __bool__(self) -> bool:
        """Return whether there are options that nobody has asked for yet."""
        return bool(self._left)

    def take(self, name: str, default: T | None = None) -> T:
        """Take an option's value. Raises UsageError if it isn't given and has no default, or is of another type."""
        value: Any = self._left.pop(name, default)
        if value is None:
            raise UsageError(f"{self._owner} says nothing of {name}: complete its configuration.")
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        kind = int if default is None else type(default)
        if not _is(value, kind):
            raise self._error(name, value, f"of type {kind.__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(name, value, "finite")
        return value

    def positive(self, name: str, default: float) -> float:
        """Take a number above 0. Raises UsageError for another."""
        value = self.take(name, default)
        if value <= 0:
            raise self._error(name, value, "above 0")
        return value

    def count(self, name: str, default: int) -> int:
        """Count a mapping's entries, or read a count, whether or not it matters otherwise."""
        value = self._given.get(name)
        return len(value) if isinstance(value, Mapping) else value if type(value) is int else default

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
            raise self._error(name, values, f"a list of {kind.__name__}")
        return tuple(values)

    def given(self, name: str, like: T) -> T | None:
        """Take a value, of the type of like, or None where it isn't given."""
        return self.take(name, like) if name in self._left else None

    def given_positive(self, name: str) -> float | None:
        """Take a number above 0, or None where it isn't given. Raises UsageError for another."""
        return self.positive(name, 1.0) if name in self._left else None

    def is_none(self, name: str) -> bool:
        """Return whether an option is given as None."""
        return name in self._given and self._given[name] is None

    def same(self, values: Mapping[str, T | None], default: T) -> T:
        """Return the value that places have, by name; None where one has none. Raises UsageError if they differ."""
        found = {place: value for place, value in values.items() if value is not None}
        if len(set(found.values())) > 1:
            raise self._contradiction(f"{place}={value!r}" for place, value in found.items())
        return next(iter(found.values()), default)

    def within(self, *names: str) -> "tuple[str, Options]":
        """Take options that are given together, under one of these names or the same under several, and that name."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in names:
            if value := self._left.pop(name, {}):
                if not isinstance(value, Mapping):
                    raise self._error(name, value, "a mapping")
                found[name] = value
        if any(value != next(iter(found.values())) for value in found.values()):
            raise self._contradiction(found)
        place = next(iter(found), names[0])
        return place, Options(f"{place} of {self._owner}", found.get(place, {}), all_matter=True)

    def require(self, name: str, *allowed: object, default: object, keep: bool = False) -> None:
        """Raise UsageError unless an option has one of these values. keep: it is still to be taken."""
        value = self._left.get(name, default) if keep else self._left.pop(name, default)
        if value not in allowed:
            raise self.refusal(f"{name}={value!r}", " or ".join(map(repr, allowed)))

    def require_off(self, *names: str) -> None:
        """Raise UsageError for one of these that is on; they are off where nothing is said of them."""
        for name in names:
            self.require(name, False, default=False)

    def require_if_given(self, name: str, known: object) -> None:
        """Raise UsageError if an option that may matter to this network alone is given and has another value."""
        if (value := self._given.get(name)) is not None and value != known:
            raise self.refusal(f"{name}={value!r}", repr(known))

    def forget(self, *names: str) -> None:
        """Forget options that change nothing, whatever they are."""
        for name in names:
            self._left.pop(name, None)

    def refusal(self, what: str, known: str) -> UsageError:
        """Make the error of an option whose value isn't known."""
        return UsageError(f"{self._owner} has {what}, which can't be trained here: only {known} can.")

    def finish(self) -> None:
        """Raise UsageError if there are options that nobody has asked for."""
        for name, value in self._left.items():
            if not _says_nothing(name, value):
                words = repr(value)
                shown = words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]}\u2026"
                raise UsageError(
                    f"{self._owner} has {name}={shown}, an option that no adapter knows and that might change the "
                    "network: remove it if it doesn't."
                )

    def dropout(self, names: Collection[str], inside: Collection[str], default: float, override: float | None) -> float:
        """Take dropout of embedding and projections, which must be alike; none may be inside (of attention).

        override: what to take instead, whatever is configured.
        """
        rates = {name: self.take(name, default) for name in (*names, *inside)}
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise self._error(name, rate, "from 0 to below 1")
        if override is not None:
            return override
        others = {rates[name] for name in names}
        if any(rates[name] for name in inside) or len(others) > 1:
            listed = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
            raise UsageError(
                f"{self._owner} has {listed}, but dropout here is the same everywhere and never inside attention: set "
                "them so, train what is in eval mode, or give --dropout."
            )
        return others.pop() if others else 0.0

    def _error(self, name: str, value: object, asked: str) -> UsageError:
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        return UsageError(f"{self._owner} has {name}={shown}, but that is to be {asked}: correct it.")

    def _contradiction(self, places: Iterable[str]) -> UsageError:
        both = " and ".join(places)
        return UsageError(f"{self._owner} has {both}, which contradict each other: keep the one that is meant.")


def _is(value: object, kind: type) -> bool:
    return type(value) is kind  # True is no number here


def _is_ignored(name: str) -> bool:
    if name in READ_BY_ADAPTERS:
        return False
    return name in IGNORED_OF_TRANSFORMERS or name.startswith(PRIVATE) or name.endswith(ENDS)


def _says_nothing(name: str, value: Any) -> bool:
    """Return whether an option that no adapter asks for changes nothing at this value: it is empty, drops nothing, or
    says that what no network here has is off.
    """
    if isinstance(value, str | list | tuple | dict):
        return not value
    return (value == 0 and name.endswith(DROPPING)) or (value is False and name in OFF)
