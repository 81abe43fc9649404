"""Verdicts that were kept, beside those of today: which differ, and which are of a claim or tolerance that has changed.

A document of `par4d reproduce --out` and the one inside a bundle are the same.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import UsageError
from engine.files import json_of
from engine.published.claims import Claim, Figure, figures
from engine.result import provenance
from engine.result.judges.reproduction import Judgement, Verdict, outdated
from engine.schema import Digest, first_problem
from reports.text import clean, plural

SCHEMA: Literal["par4d.reproduction"] = "par4d.reproduction"
VERSION: Literal[1] = 1
MOST_BYTES = 64 * 2**20
"""Size of the largest document, and of the largest file of a bundle."""
NONE = "no verdict"


class _Part(BaseModel):
    """Part of a document; keys that only people or other programs read are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Measured(_Part):
    """Measurement that a verdict is on."""

    machine: str


class Finding(_Part):
    """Verdict on one target."""

    published: str
    of: str
    verdict: Verdict
    by_sign: bool
    measured: Measured | None


class KeptClaim(_Part):
    """Claim as it was judged."""

    name: str
    digest: Digest
    tolerance: float
    findings: tuple[Finding, ...]


class KeptFigure(_Part):
    """Figure as it was judged."""

    paper: str
    where: str
    claims: tuple[KeptClaim, ...]


class Origin(_Part):
    """Origin of verdicts."""

    commit: str | None = None
    dirty: bool | None = None
    versions: dict[str, str] = {}
    """Versions of all packages, and of Python and the kernel."""


class Packed(_Part):
    """File of a bundle."""

    sha256: Digest
    source: str = ""
    """Place it was read from."""


class Kept(_Part):
    """Document with verdicts."""

    schema_: Literal["par4d.reproduction"]
    version: Literal[1]
    system: str = ""
    """Machine by whose measurements alone it judges; "" for all."""
    origin: Origin = Origin()
    figures: tuple[KeptFigure, ...]
    files: dict[str, Packed] = {}
    """Files of the bundle that it is in, by name; none where it is in no bundle."""

    def chosen(self, of: Sequence[Figure]) -> list[Figure]:
        """Return those of today's figures that have a verdict here."""
        mine = {(one.paper, one.where) for one in self.figures}
        return [one for one in of if (one.paper, one.where) in mine]


class Change(NamedTuple):
    """Verdict that isn't the one that was kept."""

    place: str
    """Paper, figure and claim."""
    of: str
    """Published value, and what it is of."""
    machine: str
    was: str
    now: str

    def __str__(self) -> str:
        on = f" on {self.machine}" if self.machine else ""
        return f"{self.place} ({self.of}){on}: {self.now}, kept as {self.was}"


class Compared(NamedTuple):
    """Comparison of verdicts with those that were kept."""

    same: int
    """Verdicts on a measurement that are as they were."""
    differing: tuple[Change, ...]
    outdated: tuple[str, ...]
    """Claims that aren't what was judged, a sentence each."""

    @property
    def empty(self) -> bool:
        """Whether there was nothing to compare."""
        return not (self.same or self.differing or self.outdated)

    @property
    def agrees(self) -> bool:
        """Whether every verdict is as it was, and still holds."""
        return not self.differing and not self.outdated


def origin() -> dict[str, Any]:
    """Say what judges here: the commit, whether tracked files differ from it, and the versions of all packages."""
    commit, dirty = provenance.git_state(provenance.CHECKOUT)
    return {"commit": commit, "dirty": dirty, "versions": _versions()}


@cache
def _versions() -> dict[str, str]:
    found = {one.name: one.version for one in metadata.distributions() if one.name}
    return dict(sorted((found | provenance.versions()).items()))


def read(path: Path) -> Kept:
    """Read a document. Raises UsageError for a file that is none."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {MOST_BYTES // 2**20} MiB: no document of verdicts has.")
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None


def parse(text: bytes, where: str) -> Kept:
    """Read the text of a document. Raises UsageError; where: its origin, for the error."""
    try:
        data = json_of(text)
    except ValueError:
        raise UsageError(
            f"{where} is neither a bundle nor JSON: give what par4d reproduce --bundle or --out wrote."
        ) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UsageError(f"{where} has no verdicts: give what par4d reproduce --bundle or --out wrote.")
    if isinstance(version := data.get("version"), int) and version > VERSION:
        raise UsageError(f"{where} has version {version}, but this Par4D reads up to {VERSION}: update Par4D.")
    return of_document(data, where)


def of_document(data: dict[str, Any], where: str = "the document") -> Kept:
    """Check a decoded document. Raises UsageError for one without verdicts, such as a list."""
    try:
        return Kept.model_validate(data | {"schema_": data.get("schema")})
    except ValidationError as error:
        raise UsageError(f"{where} has no valid verdicts: {first_problem(error)}") from None


def compare(kept: Kept, now: Kept, of: Sequence[Figure] | None = None) -> Compared:
    """Compare verdicts on measurements with those that were kept. of: the figures that are asked for; all by default.

    What was kept of a figure that is no more is outdated.
    """
    every = figures()
    asked = every if of is None else of
    left_out = {(one.paper, one.where) for one in every} - {(one.paper, one.where) for one in asked}
    known = {(one.paper, one.where, one.name): one for figure in every for one in figure.claims}
    today = {(one.paper, one.where, part.name): part for one in now.figures for part in one.claims}
    same, differing, changed = 0, list[Change](), list[str]()
    for figure in kept.figures:
        for claim in () if (figure.paper, figure.where) in left_out else figure.claims:
            key = (figure.paper, figure.where, claim.name)
            place = clean(f"{figure.paper} {figure.where}" + (f", {claim.name}" if claim.name else ""))
            if why := _outdated(known.get(key), claim, place):
                changed.append(why)
            else:
                alike, others = _changes(place, claim, today.get(key))
                same, differing = same + alike, [*differing, *others]
    return Compared(same, tuple(differing), tuple(changed))


def _outdated(claim: Claim | None, kept: KeptClaim, place: str) -> str | None:
    """Say why what was judged isn't what would be judged today."""
    if claim is None:
        return f"{place} is no claim any more: judge its figure again."
    return outdated(claim, Judgement("can't tell", digest=kept.digest, tolerance=kept.tolerance))


def _changes(place: str, kept: KeptClaim, now: KeptClaim | None) -> tuple[int, list[Change]]:
    """Return how many verdicts on a claim's measurements are the same, and the others."""
    before, after = _verdicts(kept), _verdicts(now) if now else {}
    same, found = 0, list[Change]()
    for key in dict.fromkeys([*before, *after]):
        was, now_is = before.get(key, NONE), after.get(key, NONE)
        if was == now_is:
            same += 1
        else:
            said, machine = key
            found.append(Change(place, said, machine, was, now_is))
    return same, found


def _verdicts(claim: KeptClaim) -> dict[tuple[str, str], str]:
    """Return the verdicts on what was measured, by published value and machine."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for one in claim.findings:
        if one.measured is not None:
            said = clean(", ".join(filter(None, (one.published, one.of))))
            words = f"{one.verdict} (who is ahead)" if one.by_sign else str(one.verdict)
            found[said, clean(one.measured.machine, 60)].append(words)
    return {key: ", ".join(sorted(words)) for key, words in found.items()}


def as_text(kept: Kept, compared: Compared, file: Path) -> str:
    """Write a comparison for a terminal."""
    counts = f"{compared.same} as kept, {len(compared.differing)} differ, {plural(len(compared.outdated), 'claim')}"
    head = f"Verdicts beside those of {clean(str(file))} ({_commit(kept.origin)}): {counts} outdated."
    lines = [f"Differs: {one}." for one in compared.differing] + [f"Outdated: {one}" for one in compared.outdated]
    return "\n".join([head, *lines, *_versions_that_differ(kept.origin)])


def as_data(kept: Kept, compared: Compared, file: Path) -> dict[str, Any]:
    """Return a comparison as JSON has it."""
    differing = [one._asdict() for one in compared.differing]
    found = {"same": compared.same, "differing": differing, "outdated": list(compared.outdated)}
    return {"file": clean(str(file)), "commit": kept.origin.commit, **found}


def _commit(origin: Origin) -> str:
    commit = clean(origin.commit)[:12] if origin.commit else "commit not known"
    return f"{commit}{', with changes' if origin.dirty else ''}"


def _versions_that_differ(then: Origin) -> list[str]:
    """Say which packages that both have are of another version."""
    mine = _versions()
    other = [name for name, version in sorted(then.versions.items()) if mine.get(name, version) != version]
    if not other:
        return []
    shown = ", ".join(f"{clean(name, 40)} {clean(then.versions[name], 40)}" for name in other[:5])
    return [f"Judged then with {shown}{' ...' if len(other) > 5 else ''}; here in other versions."]
