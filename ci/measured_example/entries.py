"""List of what the example site shows: suites, sized down, and commands of the engine."""

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from engine import yaml_text
from engine.errors import UsageError
from engine.schema import Record, first_problem

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = Path(__file__).with_name("entries.yaml")
LOCAL: Literal["local"] = "local"
CLUSTER: Literal["vcluster"] = "vcluster"


class Entry(Record):
    """Part of the measurements: a selection of one suite, or commands, whose results become one committed file."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    """Name of its file in reports/example."""
    system: Literal["local", "vcluster"] = LOCAL
    minutes: float = Field(gt=0)
    """Time that it took on two cores at rest."""
    suite: str = Field(default="", pattern=r"^[a-z_0-9]*$")
    """File of suites/, without .py."""
    only: str = ""
    """Pattern of the names of its tests, as ReFrame's -n takes it."""
    parameters: tuple[str, ...] = ()
    """Values of its tests' parameters, as ReFrame's -P takes them."""
    settings: tuple[str, ...] = ()
    """Variables of its tests, as ReFrame's -S takes them."""
    repeat: int = Field(default=1, ge=1)
    """Jobs of each test: two or more give an interval."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Words of `python -m engine`, run one after the other in place of a suite."""
    script: str = Field(default="", pattern=r"^[a-z_0-9/.]*$")
    """Python file of the project, for which the words are in place of `python -m engine`."""
    peer: str = ""
    """Environment of ci/peers without which it can't run."""

    @model_validator(mode="after")
    def _is_a_suite_or_commands(self) -> Self:
        if bool(self.suite) == bool(self.commands):
            raise ValueError("an entry has a suite, or commands")
        if self.commands and (self.only or self.parameters or self.settings or self.repeat > 1):
            raise ValueError("only, parameters, settings and repeat are a suite's")
        return self

    @property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """Command lines, to run one after the other in its own folder."""
        if self.commands:
            program = (str(ROOT / self.script),) if self.script else ("-m", "engine")
            return tuple((str(ROOT / ".venv/bin/python"), *program, *words) for words in self.commands)
        chosen = ("-n", self.only) if self.only else ()
        settings = tuple(word for one in self.parameters for word in ("-P", one))
        settings += tuple(word for one in self.settings for word in ("-S", one))
        repeat = ("--repeat", str(self.repeat)) if self.repeat > 1 else ()
        suite = ("-c", str(ROOT / "suites" / f"{self.suite}.py"), "--system", self.system)
        return ((str(ROOT / "ci/bin/reframe"), *suite, *chosen, *settings, *repeat, "-r"),)

    @property
    def digest(self) -> str:
        """Digest of what it runs, whatever time that takes."""
        return sha256(self.model_dump_json(exclude={"minutes"}).encode()).hexdigest()


class Entries(Record):
    """The whole file."""

    entries: tuple[Entry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _have_names_of_their_own(self) -> Self:
        names = [entry.name for entry in self.entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two entries are called {min(twice)!r}")
        return self


@cache
def read(path: Path = ENTRIES) -> tuple[Entry, ...]:
    """Read the list, local entries first. Raises UsageError for a file that is no list of entries."""
    try:
        found = Entries.model_validate({"entries": yaml_text.read(path)}).entries
    except ValidationError as error:
        raise UsageError(f"{path} is no list of what to measure: {first_problem(error)}") from None
    return tuple(sorted(found, key=lambda entry: entry.system == CLUSTER))
