"""Schema of the result of ci/gpu: checks on one machine with a GPU, and their outcomes.

Version 1 had no outcome "undecided": what varied was judged by the favourable end of its interval in one process.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from engine.files import json_of, write_text
from engine.result.schema import Provenance, checked
from engine.schema import Document, Record

SCHEMA: Literal["par4d.gpu_check"] = "par4d.gpu_check"
VERSION: Literal[2] = 2

Status = Literal["pass", "fail", "undecided", "told", "not run"]
UNJUDGED: tuple[Status, ...] = ("undecided", "not run")


class Finding(Record):
    """One check."""

    name: str
    status: Status
    """undecided: the interval of its figure contains the limit (gate.py). told: nothing is asked of its figure."""
    figure: float | None = None
    """None where there is none, or none that is finite."""
    unit: str = ""
    want: str = ""
    """Limit of the figure, in words."""
    sentence: str = ""
    seconds: float | None = None
    """Time of the last process that found it, which may have found others too."""


class GpuCheck(Document):
    """One run of the command."""

    schema_: Literal["par4d.gpu_check"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2] = VERSION
    device: Literal["cpu", "cuda"]
    """cpu is the rehearsal."""
    device_name: str
    """Name of the first device."""
    devices: int
    memory_bytes: int | None = None
    minutes: float
    """Limit of its time."""
    seconds: float
    """Its time so far."""
    findings: tuple[Finding, ...]
    """All checks, also those that have not been run yet."""
    provenance: Provenance

    @property
    def status(self) -> Literal["ok", "failed", "undecided"]:
        """Outcome of the whole: one that fails is enough, else one that is undecided or was not run."""
        statuses = {finding.status for finding in self.findings}
        return "failed" if "fail" in statuses else "undecided" if statuses.intersection(UNJUDGED) else "ok"


def parse(data: object, where: str) -> GpuCheck:
    """Check a decoded JSON document. where: its origin, for errors. Raises ResultError."""
    return checked(GpuCheck, "check of a GPU", data, where)


def write(result: GpuCheck, path: Path) -> None:
    """Write the file, in one step."""
    write_text(path, result.to_json())


def read_findings(path: Path) -> list[Finding]:
    """Read the findings of a part of the check so far; none without a file, or of one of another kind."""
    data = json_of(path.read_text()) if path.exists() else None
    return [Finding.model_validate(finding) for finding in data] if isinstance(data, list) else []


def write_findings(findings: list[Finding], path: Path) -> None:
    """Write the findings of a part of the check so far, in one step."""
    write_text(path, f"[{', '.join(finding.model_dump_json() for finding in findings)}]\n")
