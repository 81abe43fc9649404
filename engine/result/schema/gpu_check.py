"""The result of ci/gpu says what was looked at on one machine with a GPU, and how each of it came out.

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
    """It is one thing that was looked at. undecided: the interval of its figure lies across what is asked of it
    (gate.py).

    told: nothing is asked of its figure. figure: in unit; absent where there is none, or none that is finite. want:
    what it should be, in words. sentence: what was seen, why it failed or why it was not run. seconds: of the last
    process that found it, which may have found others too.
    """

    name: str
    status: Status
    figure: float | None = None
    unit: str = ""
    want: str = ""
    sentence: str = ""
    seconds: float | None = None


class GpuCheck(Document):
    """It is one run of the command. device: "cpu" is the rehearsal. device_name: of the first of so many devices.

    memory_bytes: of one device. minutes: that it might take; seconds: that it has taken so far. What has not been run
    yet, or never was, is among the findings too.
    """

    schema_: Literal["par4d.gpu_check"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2] = VERSION
    device: Literal["cpu", "cuda"]
    device_name: str
    devices: int
    memory_bytes: int | None = None
    minutes: float
    seconds: float
    findings: tuple[Finding, ...]
    provenance: Provenance

    @property
    def status(self) -> Literal["ok", "failed", "undecided"]:
        """Judge the whole: one that fails is enough; without one, one that is undecided or was not run."""
        found = {finding.status for finding in self.findings}
        return "failed" if "fail" in found else "undecided" if found.intersection(UNJUDGED) else "ok"


def parse(data: object, where: str) -> GpuCheck:
    """Check a decoded JSON document. where names its origin in errors. Raises ResultError."""
    return checked(GpuCheck, "check of a GPU", data, where)


def write(result: GpuCheck, path: Path) -> None:
    """Write the file, in one step."""
    write_text(path, result.to_json())


def read_findings(path: Path) -> list[Finding]:
    """Read what a part of the check has written so far; nothing where there is no file, or one of another kind."""
    data = json_of(path.read_text()) if path.exists() else None
    return [Finding.model_validate(one) for one in data] if isinstance(data, list) else []


def write_findings(findings: list[Finding], path: Path) -> None:
    """Write what a part of the check has found so far, in one step."""
    write_text(path, f"[{', '.join(finding.model_dump_json() for finding in findings)}]\n")
