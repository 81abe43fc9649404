"""Definition of a derived figure, beside the function that computes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Definition:
    """Figure of the methods page."""

    name: str
    title: str
    formula: str
    """Formula in the names of the function's parameters."""
    text: str


def figure(title: str, formula: str) -> Callable[[_Function], _Function]:
    """Mark a function as the figure of that title, which computes that formula."""

    def define(function: _Function) -> _Function:
        text = " ".join((function.__doc__ or "").split())
        vars(function)["definition"] = Definition(function.__name__, title, formula, text)
        return function

    return define
