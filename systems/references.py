"""References of a system's tests, in references/NAME.yaml, which only `par4d reference make` writes.

A suite takes ReFrame's references from there, and `par4d verdict` judges a night by them. Published figures are not
here: they are targets (suites/base/figures.py).
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from engine.schema import Record
from systems.files import SystemFileError, as_record, read_data, write

FOLDER = Path(os.environ.get("PAR4D_REFERENCES") or Path(__file__).parent / "references").resolve()
"""PAR4D_REFERENCES names another folder, for users who may not write into the project."""
if os.environ.get("PAR4D_REFERENCES"):
    os.environ["PAR4D_REFERENCES"] = str(FOLDER)  # for programs that are started in another folder
SCHEMA: Literal["par4d.references"] = "par4d.references"
VERSION: Literal[2] = 2
FEWEST_JOBS = 20
"""Fewest jobs that show how a figure varies."""
LEAST = 0.02
"""Least change that counts, as a fraction."""
MADS = 5
NOTICE = "# Made by `par4d reference make --system {name}` from the results of its jobs: make it anew, don't edit it.\n"
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Key(NamedTuple):
    """Settings that jobs have in common to be compared."""

    partition: str
    test: str
    point: str
    grid: str
    ranks: int
    precision: str
    options: str
    """The command's options, without those that only describe the machine or say where files are."""

    @property
    def name(self) -> tuple[str, str]:
        """Test and its point, as name_of returns them."""
        return self.test, self.point


_OF_THE_MACHINE = frozenset(
    {"--label", "--out", "--timeout", "--meeting-timeout", "--peak-flops", "--empirical-peak-flops"}
    | {"--link-bytes-per-s", "--intra-node-bytes-per-s", "--device-memory"}
)
"""Options that change no work: they say where a result goes, and what the machine is."""
_PATHS = frozenset({"--data"})
_REPETITION = re.compile(r" %?\.repeat_no=\d+")
"""Suffix that `reframe --repeat` adds to a test's name."""


def key_of(*, partition: str, display_name: str, ranks: int, words: Iterable[str], record: Mapping[str, Any]) -> Key:
    """Return the key of a test case, by its name in ReFrame, the words of its launch line, and its result or {}."""
    test, point = name_of(display_name)
    config, line = record.get("config"), list(words)
    values = dict(reversed([*pairwise(line)]))  # an option's first one counts
    precision = record.get("dtype") or (config.get("precision") if isinstance(config, dict) else None)
    return Key(
        partition=partition,
        test=test,
        point=point,
        grid=str(record.get("grid") or values.get("--grid", "")),
        ranks=ranks,
        precision=str(precision or values.get("--precision") or values.get("--dtype", "")),
        options=" ".join(_work(line)),
    )


def name_of(display_name: str) -> tuple[str, str]:
    """Return a test's name and its point, which all its repetitions share."""
    test, _, point = _REPETITION.sub("", display_name).partition(" ")
    return test, point.replace("%", "").strip()


def _work(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a launch line that say what is computed."""
    given = iter(words)
    for word in given:
        if word in _OF_THE_MACHINE:
            next(given, None)
        elif word in _PATHS:
            yield f"{word} {Path(next(given, '')).name}"
        else:
            yield word


CANARY = "canary"
"""Figure of a night's jobs alone: the seconds of the frozen program (suites/base/canary.py)."""
LOWER_IS_BETTER = frozenset({"s", "x", "B"})
HIGHER_IS_BETTER = frozenset({"flop/s", "tokens/s", "B/s", "token/J", "image/J"})


def worse_by(unit: str) -> int:
    """Return +1 where a larger number of this unit is worse, -1 where it is better, 0 where it is neither."""
    return 1 if unit in LOWER_IS_BETTER else -1 if unit in HIGHER_IS_BETTER else 0


class Reference(Record):
    """Median of a figure over jobs, and of their absolute deviations from it; every night counts the same."""

    unit: str = Field(min_length=1)
    median: Positive
    mad: Annotated[Number, Field(ge=0)]
    jobs: int = Field(ge=FEWEST_JOBS)
    nights: int = Field(gt=0)

    def as_reframe(self) -> tuple[float, float | None, float | None, str]:
        """Return ReFrame's reference, which a single job fails if it is worse by LEAST, and by MADS deviations."""
        most = max(LEAST, MADS * self.mad / self.median)
        worse = worse_by(self.unit)
        lower, upper = -min(most, 1.0) if worse < 0 else None, most if worse > 0 else None
        return self.median, lower, upper, self.unit


class ReferenceSet(Record):
    """References of the jobs of one key, with all versions, commits and devices that they had."""

    partition: str
    test: str = Field(min_length=1)
    point: str
    grid: str
    ranks: int
    precision: str
    options: str
    nights: int = Field(gt=0)
    first: str
    """Start of the session of the first job, and of the last one below."""
    last: str
    versions: dict[str, tuple[str, ...]] = {}
    commits: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    figures: dict[str, Reference] = Field(min_length=1)

    @property
    def key(self) -> Key:
        return Key(self.partition, self.test, self.point, self.grid, self.ranks, self.precision, self.options)


class References(Record):
    """References of a system."""

    schema_: Literal["par4d.references"] = Field(default=SCHEMA, alias="schema")
    version: Literal[2] = VERSION
    system: str
    made: str
    commit: str | None = None
    """The project's when the file was made."""
    digest: str
    """Digest of the series, which shows that one was edited."""
    series: tuple[ReferenceSet, ...]

    @model_validator(mode="after")
    def _is_as_it_was_made(self) -> Self:
        if self.digest != digest(self.series):
            raise ValueError("it was edited since it was made")
        return self

    def by_key(self) -> Mapping[Key, ReferenceSet]:
        return {series.key: series for series in self.series}


def digest(series: Iterable[ReferenceSet]) -> str:
    text = json.dumps([one.model_dump(mode="json") for one in series], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


def references(name: str) -> References | None:
    """Return a system's references; None where none were made. Raises SystemFileError for a file that can't be used."""
    path = path_of(name)
    return _read(path, path.stat().st_mtime_ns, name) if path.exists() else None


@cache
def _read(path: Path, changed_ns: int, name: str) -> References:
    try:
        data = read_data(path, what="references", holds="schema, system and series")
        version = data.get("schema"), data.get("version")
        if version != (SCHEMA, VERSION):
            words = "{!r} of version {!r}".format(*version)
            raise SystemFileError(f"{path} is {words}, and this Par4D reads {SCHEMA} of version {VERSION}")
        found = as_record(References, data, path, what="a references")
        if found.system != name:
            raise SystemFileError(f"{path} holds references of {found.system!r}, not of {name}")
    except SystemFileError as error:
        remedy = f"make it anew by `par4d reference make --system {name}`"
        raise SystemFileError(f"{str(error).rstrip('.')}: {remedy}.") from None
    return found


def keep(name: str, made: str, commit: str | None, series: Iterable[ReferenceSet]) -> Path:
    """Write a system's file in place of what was there, in one step. Raises OSError where it can't be written."""
    ordered = tuple(sorted(series, key=lambda one: one.key))
    found = References(system=name, made=made, commit=commit, digest=digest(ordered), series=ordered)
    return write(path_of(name), NOTICE.format(name=name), found.model_dump(mode="json", by_alias=True))
