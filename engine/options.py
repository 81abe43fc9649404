"""Options of the command line: words read as values, and values written as words of --help.

An option is declared once, as a field of a frozen dataclass or a parameter of a command: its name, type and default are
the option's, and the text under a field is its help. cyclopts makes the command line from that; what a type alone
doesn't say is annotated with what is here.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import Parameter, Token, convert

from engine.errors import UsageError
from engine.grid import Grid


def word(parse: Callable[[str], Any], metavar: str) -> Parameter:
    """Declare an option whose value is one word that `parse` reads. A UsageError of parse reaches the
    user, after the option's name if it hasn't got it.
    """

    def converted(_: object, tokens: Sequence[Token]) -> Any:
        return _named(parse, tokens[0])

    return Parameter(converter=converted, metavar=metavar, n_tokens=1, accepts_keys=False)


def words(parse: Callable[[str], Any], metavar: str) -> Parameter:
    """Declare an option that is given once for each of its values."""

    def converted(_: object, tokens: Sequence[Token]) -> tuple[Any, ...]:
        return tuple(_named(parse, token) for token in tokens)

    return Parameter(converter=converted, metavar=metavar, n_tokens=1, accepts_keys=False)


def _named(parse: Callable[[str], Any], token: Token) -> Any:
    """Read an option's word; a refusal that doesn't name the option gets its name. Raises UsageError."""
    try:
        return parse(token.value)
    except UsageError as error:
        words, name = str(error), token.keyword
        if name is None or name in words:
            raise
        raise UsageError(f"{name}: {words[:1].lower()}{words[1:]}") from None


def numbers(text: str) -> tuple[int, ...]:
    """Read "3", "0,8" or "4..7", ascending, each once. Raises UsageError.

    >>> numbers("0,4..6")
    (0, 4, 5, 6)
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:\.\.(\d{1,7}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"Numbers are written as 3, as 0,8 or as 4..7, but {text!r} was given.")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise UsageError(f"A label is written KEY=VALUE, but {key + sign!r} was given.")
    return key, value


GRID = "XxYxZxDATA"
GridOrAuto = Annotated[Grid | None, word(lambda text: None if text == "auto" else Grid.parse(text), GRID)]
Numbers = Annotated[tuple[int, ...], word(numbers, "N,N..N")]
Grids = Annotated[tuple[Grid, ...], words(Grid.parse, GRID)]
Labels = Annotated[
    tuple[tuple[str, str], ...],
    Parameter(name="--label", help="kept in the result; repeatable"),
    words(_label, "KEY=VALUE"),
]
File = Annotated[Path, Parameter(metavar="FILE")]
Folder = Annotated[Path, Parameter(metavar="DIR")]
Seconds = Annotated[float, Parameter(metavar="SECONDS")]
DeviceName = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="auto: cuda where there is one")]
Out = Annotated[File, Parameter(help="where the result goes")]
Bytes = Annotated[float, Parameter(metavar="BYTES")]
NO_OPTION = Parameter(parse=False)


def _converted(hint: Any, tokens: Sequence[Token]) -> Any:
    """Convert as cyclopts does, but a whole number is whole, where cyclopts would round 2.5, and a word that isn't
    among an option's is told in one sentence.
    """
    kinds = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]) - {type(None)}
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    whole = int in kinds
    if all(kind is int or get_origin(kind) is Literal for kind in kinds):
        listed = ", ".join(words) if len(words) == 1 else f"one of {', '.join(words)}"
        allowed = " or ".join([*(["a whole number"] if whole else []), *([listed] if words else [])])
        for token in tokens:
            if token.value not in words and not (whole and re.fullmatch(r"[+-]?\d+", token.value)):
                raise UsageError(f"{token.keyword} is {allowed}, but {token.value!r} was given.")
    if Path in kinds and not tokens[0].value:
        raise UsageError(f"{tokens[0].keyword} is the name of a file or folder, but none was given.")
    return convert(hint, tokens)


def _written(default: Any) -> str | None:
    """Write a default as one would give it; None for what --help doesn't show."""
    if default is None or default is False or default == ():
        return None
    return f"{default:g}" if isinstance(default, float) else str(default)


DEFAULTS = Parameter(negative=(), allow_repeating=True, converter=_converted, show_default=_written)
"""Traits of every option: a flag has no --no-flag beside it, and of an option given twice the last one counts."""


def option_names(options: type) -> dict[str, str]:
    """Name the options of a dataclass: field -> its word without the dashes."""
    found = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        said = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Parameter)]
        if not any(one.parse is False for one in said):
            own = next((str(*one.name) for one in said if one.name), name.replace("_", "-"))
            found[name] = own.removeprefix("--")
    return found


def option_words(options: Any) -> list[str]:
    """Write the options of a dataclass that aren't as by default, as every command takes them."""
    found, defaults = [], {one.name: one.default for one in fields(options)}
    for name, own in option_names(type(options)).items():
        value = getattr(options, name)
        if value != defaults[name]:
            found += [f"--{own}"] if value is True else [f"--{own}", str(_written(value))]
    return found


def check_file(option: str, file: Path) -> None:
    """Raise UsageError unless a file can be written where the option says."""
    if file.is_dir():
        raise UsageError(f"{option} {file} is a folder: give the name of a file.")
    check_folder(option, file.absolute().parent)


def check_folder(option: str, folder: Path) -> None:
    """Raise UsageError unless files can be written into the folder, which is made if need be."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UsageError(f"{option} can't be written: {existing} is not a folder that may be written to.")
