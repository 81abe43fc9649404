"""Identity of ranks that meet, compared by rank 0's store: two jobs that derive one port, or a node with other code,
would otherwise give numbers that no run has.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from engine.errors import first_line

COMMAND: ContextVar[tuple[str, ...]] = ContextVar("COMMAND", default=())
"""Words of this process's command."""
MAY_DIFFER = frozenset({"--out", "--device", "--label", "--json", "--timeout", "--meeting-timeout", "--timeline"})
"""Options that ranks may be given differently, as neither numbers nor shared files depend on them."""
DECIDING = ("torch", "numpy")
"""Packages whose versions decide numbers."""
ENGINE = Path(__file__).parents[1]


class Identity(NamedTuple):
    """Traits that all ranks of a job share."""

    job: Mapping[str, str]
    """names of the job and of its user, by variable; a rank may lack some that others have"""
    traits: Mapping[str, str]
    """options and deciding versions, by name, as written: --seed 2, torch 2.9.1"""
    code: str | None
    """digest of the engine's source; None on ranks that leave reading it to the first of their node"""

    @classmethod
    def own(cls, job: Mapping[str, str], *, reads_code: bool) -> "Identity":
        written = {name: " ".join([name, *values]).strip() for name, values in options(COMMAND.get()).items()}
        versions = {name: f"{name} {_version(name)}" for name in DECIDING}
        code = source_digest() if reads_code else None
        return cls({**job, "user": str(os.getuid())}, {**written, **versions}, code)

    def to_text(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "Identity":
        return cls(**json.loads(text))


def options(words: Iterable[str]) -> dict[str, list[str]]:
    """Sort a command's words by option, without those that may differ by rank; positional words are under ''."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            found.setdefault(name, []).extend([value] if sign else [])
            name = "" if sign else name
        else:
            found.setdefault(name, []).append(word)
    return {name: values for name, values in found.items() if name not in MAY_DIFFER}


def other_job(own: Identity, first: Identity) -> str | None:
    """Return by which name a rank is of another job than rank 0: "SLURM_JOB_ID 7, and there it is 8", or None."""
    for name in own.job.keys() & first.job.keys():
        if own.job[name] != first.job[name]:
            return f"{name} {own.job[name]}, and there it is {first.job[name]}"
    return None


def difference(own: Identity, first: Identity) -> str | None:
    """Return in which trait a rank differs from rank 0: "--seed 2, but rank 0 --seed 1", or None."""
    for name in sorted({*own.traits, *first.traits}):
        mine, theirs = (one.traits.get(name, f"no {name or 'word'}") for one in (own, first))
        if mine != theirs:
            return f"{mine}, but rank 0 {theirs}"
    if None not in (own.code, first.code) and own.code != first.code:
        return f"an engine in {ENGINE} whose source is {str(own.code)[:12]}, but rank 0 one of {str(first.code)[:12]}"
    return None


def source_digest() -> str:
    digest = sha256()
    for file in sorted(ENGINE.rglob("*.py")):
        digest.update(f"{file.relative_to(ENGINE)}\0".encode())
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            digest.update(first_line(error).encode())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # of a centre's own, which has no metadata
        return "unknown"
