"""Claims of the papers, figure by figure: what each says, the numbers it rests on, and what redoes it. Without torch.

A file a paper. A file lists figures, a table, figure or section each that claims something: `says` is the claim in
plain English, and `claims` are its parts, each of one kind on one machine; what parts share stands above them. A part
names published numbers by the fields of Number, so that none is typed twice, or says who is ahead of whom. Where a
paper contradicts itself, `otherwise` has the other reading. How far a measurement may be off is one rule for each kind
(tolerance.py); engine/result/judges/reproduction.py judges by it. Costs of runs are computed by suites/costs.py.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from engine import yaml_text
from engine.errors import UsageError
from engine.published import PLACE, Number, machine_name, select
from engine.published.claims.tolerance import TOLERANCES, Kind
from engine.schema import Record, first_problem

FOLDER = Path(__file__).parent
COSTS = FOLDER / "node_hours.json"
SAME_TEXT = {"axonn-4d-arxiv": "par4d"}
"""Papers whose text, figures and numbers are another's."""
RETIRED = frozenset({"Summit"})
"""Machines that exist no more: Summit was switched off in 2024."""
ANY = "any"
"""Machine of a claim that is about none in particular."""

Status = Literal[
    "", "comes with another study", "quoted from others", "not printed in the paper", "beyond the queue", "not built",
    "the engine can't express selective checkpointing", "the engine can't express fp8",
]  # fmt: skip
"""Reason why nothing here can be judged: another study of this project will bring what it takes, the number is other
people's, of software and settings that the paper doesn't give, the paper has a picture without numbers, no queue of the
machine has room, nothing here runs it, or not as it ran.
"""


class Redo(Record):
    """Selection of suites that measures a claim again."""

    suite: str = Field(pattern=r"^[a-z_0-9]+$")
    """File of suites/, without .py."""
    only: str = ""
    """Pattern of the names of its points, as ReFrame's -n takes it; all of them without one."""
    peer: str = ""
    """Other library of a contest."""
    settings: tuple[Annotated[str, Field(pattern=r"^[a-z_]+=[\w,.-]+$")], ...] = ()
    """Variables of its tests that aren't as the series has them, as ReFrame's -S takes them."""

    @property
    def pattern(self) -> str:
        """Pattern of the names of its tests; "" for all of the suite."""
        return ".*".join(filter(None, (self.only, self.peer)))

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command after the system."""
        named = ("-n", self.pattern) if self.pattern else ()
        return ("-c", f"suites/{self.suite}.py", *named, *settings_words(self.settings))


def settings_words(settings: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a command that give its tests these settings."""
    return tuple(chain.from_iterable(("-S", one) for one in settings))


class Ranking(Record):
    """Leader over each of some others, at each of some sizes or models."""

    ahead: str
    behind: tuple[str, ...] = Field(min_length=1)
    at: tuple[str, ...] = ("",)


class Comparison(NamedTuple):
    """Leader and follower, whose difference is measured."""

    ahead: str
    behind: str
    at: str
    """Model, devices or size; "" for all that the claim is of."""


class Reading(Record):
    """Other value that the same paper gives for the same thing."""

    numbers: tuple[Number, ...]
    because: str
    """Where the paper has it."""


class Target(NamedTuple):
    """Published number in every reading of the paper, or a comparison: one measurement is judged by it."""

    readings: tuple[Number, ...] = ()
    comparison: Comparison | None = None


class Claim(Record):
    """Part of what a figure claims: of one kind, on one machine."""

    paper: str
    where: str = Field(pattern=PLACE)
    """Table, figure or section that makes the claim; its numbers may be printed elsewhere."""
    name: str = ""
    """Name of the part in its figure."""
    kind: Kind
    system: str
    """Machine of the paper, as numbers name it; "any" where it is none in particular."""
    better: Literal["higher", "lower", "neither"]
    """Side on which a measurement beyond the tolerance is better than published."""
    gain: bool = False
    """Whether a share is what is gained over something, so that its sign says who is ahead."""
    anywhere: bool = False
    """Whether nothing of it depends on the machine: losses, counted bytes."""
    out_of: int | None = Field(default=None, gt=0)
    """Whole of a share that is printed as a count."""
    by: str = ""
    """Figure by which an order is one."""
    numbers: tuple[Number, ...] = ()
    otherwise: tuple[Reading, ...] = ()
    orders: tuple[Ranking, ...] = ()
    redo: tuple[Redo, ...] = ()
    status: Status = ""
    note: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.kind == "order") != bool(self.orders) or (self.kind == "order") != bool(self.by):
            raise ValueError("`orders` and `by` are an order's, which needs both")
        if self.kind == "order" and (self.better == "neither" or self.otherwise):
            raise ValueError("an order says whether higher or lower is ahead, and has one reading")
        if self.kind != "order" and bool(self.numbers) == (self.status == "not printed in the paper"):
            raise ValueError("a claim has numbers, or the status that they are not printed in the paper")
        if any(len(reading.numbers) != len(self.numbers) for reading in self.otherwise):
            raise ValueError("another reading has as many numbers as the first")
        if (self.gain or self.out_of) and self.kind != "share":
            raise ValueError("`gain` and `out_of` are a share's")
        for number in (*self.numbers, *(number for reading in self.otherwise for number in reading.numbers)):
            if self.kind != "order" and _kind_of(number, self.out_of) != self.kind:
                raise ValueError(f"{number.metric} in {number.unit or 'counts'} is no {self.kind}")
            if number.value == 0 and TOLERANCES[self.kind].of_the_value:
                raise ValueError(f"{number.metric} is 0, of which no part can be a tolerance")
        if not self.redo and self.status == "":
            raise ValueError("a claim names the suites that redo it, or the status for which none does")
        return self

    @property
    def place(self) -> str:
        """Name of the claim among all of a paper."""
        return self.where + (f", {self.name}" if self.name else "")

    @property
    def machine(self) -> str:
        """Name that the file of the machine in systems/ has, or would have."""
        return machine_name(self.system)

    @property
    def retired(self) -> bool:
        """Whether the machine exists no more."""
        return self.system in RETIRED

    @property
    def targets(self) -> tuple[Target, ...]:
        """Targets of its measurements, one each; a number of several models is judged for each of them."""
        if self.kind == "order":
            pairs = (product([order.ahead], order.behind, order.at) for order in self.orders)
            return tuple(Target(comparison=Comparison(*pair)) for pair in chain.from_iterable(pairs))
        every = (self.numbers, *(reading.numbers for reading in self.otherwise))
        return tuple(Target(readings=readings) for readings in zip(*every, strict=True))

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Commands that redo it on the paper's machine, or on this one where any will do."""
        system = () if self.system == ANY else ("--system", self.machine)
        return tuple(("reframe", *system, *redo.words) for redo in self.redo)

    @property
    def node_hours(self) -> float | None:
        """Most that its commands take; None where nothing runs, or nobody has computed it yet."""
        return _cost(self.commands)

    @property
    def tolerance(self) -> float:
        """Tolerance of its kind."""
        return TOLERANCES[self.kind].amount

    @property
    def digest(self) -> str:
        """SHA-256 of what a verdict rests on: the claim, its numbers and the tolerance, but no words about them.

        Fields that are as by default count for nothing, so that a new field changes no digest.
        """
        words = {"redo", "status", "note", "numbers", "otherwise"}
        fields = self.model_dump(mode="json", exclude=words, exclude_defaults=True)
        fields["numbers"] = [_essence(number) for number in self.numbers]
        fields["otherwise"] = [[_essence(number) for number in reading.numbers] for reading in self.otherwise]
        fields["tolerance"] = TOLERANCES[self.kind][:2]
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Figure(Record):
    """Table, figure or section of a paper that claims something."""

    paper: str
    where: str = Field(pattern=PLACE)
    says: str = Field(min_length=1)
    """Claim in plain English."""
    claims: tuple[Claim, ...] = Field(min_length=1)

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Commands of its claims, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(claim.commands for claim in self.claims)))

    @property
    def node_hours(self) -> float | None:
        """Most that its commands take, each test once; None where nothing runs, or nobody has computed it yet."""
        return _cost(self.commands)

    @model_validator(mode="after")
    def _parts_have_names_of_their_own(self) -> Self:
        names = [claim.name for claim in self.claims]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two claims of {self.where} are called {min(twice)!r}")
        return self


def figures(paper: str = "", folder: Path = FOLDER) -> tuple[Figure, ...]:
    """Read the figures of a paper, or of all, in the order of the files. Raises UsageError for a file that has
    something else, a place twice, or a number that no paper prints.
    """
    found, wanted = _all_figures(folder), SAME_TEXT.get(paper, paper)
    papers = {figure.paper for figure in found}
    if wanted and wanted not in papers:
        raise UsageError(f"No paper is called {paper!r}: there are {', '.join(sorted(papers))}.")
    return tuple(figure for figure in found if wanted in ("", figure.paper))


@cache
def _all_figures(folder: Path) -> tuple[Figure, ...]:
    found = tuple(figure for path in sorted(folder.glob("*.yaml")) for figure in _read(path))
    known = set[tuple[str, str]]()
    for figure in found:
        if (figure.paper, figure.where) in known:
            raise UsageError(f"{figure.paper}.yaml has {figure.where} twice: put all of its claims into one.")
        known.add((figure.paper, figure.where))
    return found


@cache
def costs(path: Path = COSTS) -> Mapping[str, Mapping[str, float]]:
    """Read the node-hours that the tests of each command take at most, by their names. Raises UsageError for a file
    that doesn't say that.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(words): {str(name): float(hours) for name, hours in of.items()} for words, of in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} has no costs: {error}. Write it again by python -m suites.costs.") from None


def _cost(commands: Sequence[tuple[str, ...]]) -> float | None:
    """Add the node-hours of commands, each test of a machine with its settings once, but for those that run on any
    machine, whose cost is that of the reader's; None of none, or where one is unknown.
    """
    known, of_machines = costs(), [words for words in commands if "--system" in words]
    if not of_machines or any(" ".join(words) not in known for words in of_machines):
        return None
    tests: dict[tuple[object, ...], float] = {}
    for words in of_machines:
        machine = words[words.index("--system") + 1]
        settings = tuple(value for word, value in pairwise(words) if word == "-S")
        tests |= {(machine, settings, name): hours for name, hours in known[" ".join(words)].items()}
    return sum(tests.values())


def _read(path: Path) -> Iterator[Figure]:
    paper = path.stem
    try:
        for entry in yaml_text.read(path):
            shared = {name: value for name, value in entry.items() if name not in ("says", "claims")}
            parts = [_claim(paper, shared | part) for part in entry["claims"]]
            yield Figure(paper=paper, where=entry["where"], says=entry["says"], claims=tuple(parts))
    except ValidationError as error:
        raise UsageError(f"{path} has no valid claim: {first_problem(error)}") from None
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"{path} is no list of figures with claims: {error}.") from None


def _claim(paper: str, fields: dict[str, Any]) -> Claim:
    numbers = _numbers(paper, fields.get("numbers", ()))
    readings = [
        Reading(numbers=_numbers(paper, reading["numbers"]), because=reading["because"])
        for reading in fields.get("otherwise", ())
    ]
    return Claim(paper=paper, **(fields | {"numbers": numbers, "otherwise": tuple(readings)}))


def _numbers(paper: str, queries: Any) -> tuple[Number, ...]:
    """Take the paper's numbers that each query asks for. Raises ValueError for one that finds none, or one twice."""
    found: list[Number] = []
    for query in queries:
        numbers = select(**{"paper": paper, **query})
        if not numbers:
            raise ValueError(f"{paper} has no number with {query}")
        found += numbers
    if len(set(found)) < len(found):
        raise ValueError(f"{queries} ask for a number of {paper} twice")
    return tuple(found)


def _kind_of(number: Number, out_of: int | None) -> Kind:
    if number.unit == "%" or (number.unit == "" and out_of):
        return "share"
    return "ratio" if number.unit == "x" else "number"


def _essence(number: Number) -> dict[str, Any]:
    """Return what a number is, without notes, and without what a suite has to reach."""
    return number.model_dump(mode="json", exclude={"note", "study", "tolerance"}, exclude_defaults=True)
