"""The commands of every README, and how each is run: readme_commands.yaml has a row for each, in their order.

A command is what a block of a README says, indented or fenced, but for YAML and blocks of another language, such as
```python.
ci/weekly runs the rows of a README one after the other in one shell's environment, in one fresh clone for all of them.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from engine import yaml_text
from engine.errors import UsageError
from engine.processes import carry_out
from engine.schema import Record, first_problem
from virtual_cluster.record import STATE

TABLE = "ci/readme_commands.yaml"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
ROOT, NO_CLUSTER = "root", "no cluster"
FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})\s*(?P<language>\S*)")
INDENT = "    "
OTHER_LANGUAGES = ("python", "yaml", "json", "text")
YAML = re.compile(r"[\w-]+:(\s|$)")
"""Beginning of an indented block that is a file's text."""
BEFORE_COMMENT = re.compile(r"""(?:'[^']*'|"[^"]*"|(?<=\S)#|[^#])*""")
IN_A_SHELL = '[ ! -e "$1" ] || . "$1" >/dev/null 2>&1; eval "$2"; code=$?; export -p >"$1"; exit "$code"'
"""Takes up what the commands before have exported, and leaves what this one has."""
TOO_LATE = "the time for all of them was over"
QUICK_S = 60.0
"""Time-out of a command that undoes another, and of bash where it only parses."""


class Row(Record):
    """One command of a README, and how it is run."""

    command: str
    """As the README has it, without its comment; only white space may differ."""
    how: Literal["as it stands", "dry", "sized down", "not run"]
    why: str = ""
    """Reason why it isn't run as it stands, and of one that is not run, what is run in its place."""
    run: str = ""
    """Command that is run in its place, if any."""
    minutes: float = Field(0, ge=0, allow_inf_nan=False)
    """To take at most."""
    codes: tuple[int, ...] = Field((0,), min_length=1)
    """Exit codes that it may have."""
    says: str = ""
    """Part of its output that it has to have, without which a code other than 0 could be of anything."""
    needs: tuple[str, ...] = ()
    """Programs without which it can't be run; "root", or "no cluster" that is up, may be among them."""
    after: str = ""
    """Command before it, without which it can't be run."""
    undo: str = ""
    """Ends what it has left running, also where a week breaks off; not run after a command that is the same."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.how != "as it stands" and not self.why:
            raise ValueError(f"`{self.command}` is {self.how}, so `why` has to say the reason")
        if bool(self.run) != (self.how == "sized down") and self.how != "dry":
            raise ValueError(f"`{self.command}` is {self.how}: `run` says how a command is sized down, or dry")
        if bool(self.minutes) != (self.how != "not run"):
            raise ValueError(f"`{self.command}` is {self.how}: `minutes` is the time-out of one that is run")
        if self.codes != (0,) and not self.says:
            raise ValueError(f"`{self.command}` may end with {self.codes}: `says` tells of what it is then")
        return self


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcome of a row."""

    readme: str
    row: Row
    text: str = ""
    """Command that was run."""
    code: int | None = None
    """None where its time was over."""
    seconds: float = 0.0
    output: str = ""
    lacks: str = ""
    """Why it could not be run here."""

    @property
    def outcome(self) -> str:
        if self.lacks:
            return SKIPPED
        return PASSED if self.code in self.row.codes and self.row.says in self.output else FAILED

    def __str__(self) -> str:
        if self.lacks:
            return f"skipped, as {self.lacks}: {self.row.command}"
        ended = "took too long" if self.code is None else f"code {self.code}"
        wanted = f"not {' or '.join(map(str, self.row.codes))} within {self.row.minutes:g} minutes"
        if self.code in self.row.codes:
            wanted = f"without saying {self.row.says!r}"
        wanted = "" if self.outcome == PASSED else f", {wanted}"
        return f"{ended}{wanted}, {self.seconds:.0f} s: {self.text}"


def readmes(root: Path) -> dict[str, list[str]]:
    """Return the commands of each README, by its path: the project's own first."""
    rooms = [file.parent for file in sorted(root.glob("[!.]*/README.md"))]
    files = [root / "README.md", *(file for room in rooms for file in sorted(room.rglob("README.md")))]
    return {str(file.relative_to(root)): commands(file.read_text()) for file in files}


def commands(readme: str) -> list[str]:
    """Return the commands of a README without their comments, each as one text to run."""
    shells = (block for block in _blocks(readme) if not (block and YAML.match(block[0])))
    return [command for block in shells for command in _commands(block)]


def _blocks(readme: str) -> Iterator[list[str]]:
    """Yield the lines of each block of code, but for those of other languages."""
    block: list[str] = []
    fence = language = ""
    paragraph = False
    for line in (*readme.expandtabs(4).splitlines(), ""):
        if fence:
            if line.strip().startswith(fence):
                if language not in OTHER_LANGUAGES:
                    yield block
                fence, block = "", []
            else:
                block.append(line)
        elif found := FENCE.match(line):
            if block:
                yield block
            block = []
            fence, language = found["marks"], found["language"].lower()
        elif line.startswith(INDENT) and not paragraph:
            block.append(line.removeprefix(INDENT))
        elif line.strip() and block:
            yield block
            block = []
        paragraph = not fence and bool(line.strip()) and not block
    if block:
        yield block


def _commands(lines: Sequence[str]) -> Iterator[str]:
    """Yield the commands of a block. One ends where bash takes the lines since the last as whole."""
    text = ""
    for line in lines:
        bare = BEFORE_COMMENT.match(line)
        assert bare is not None  # it also matches nothing
        if not (words := bare[0].rstrip()).strip():
            continue
        is_continued = text.endswith("\\")
        text = f"{text[:-1].rstrip()} {words.strip()}" if is_continued else f"{text}\n{words.strip()}".strip()
        if not text.endswith("\\") and _is_whole(text):
            yield text
            text = ""
    if text:
        yield text


def _is_whole(text: str) -> bool:
    """Say whether a command, or the loop that it begins, has ended."""
    done = subprocess.run(["bash", "-nc", text], capture_output=True, timeout=QUICK_S, check=False)
    return b"unexpected end of file" not in done.stderr and b"unexpected EOF" not in done.stderr


def table(root: Path) -> dict[str, tuple[Row, ...]]:
    """Return the rows by README. Raises UsageError for a table that is wrong."""
    try:
        return TypeAdapter(dict[str, tuple[Row, ...]]).validate_python(yaml_text.read(root / TABLE))
    except ValidationError as error:
        raise UsageError(f"{TABLE} is no table of commands: {first_problem(error)}") from None


def faults(rows: Mapping[str, Sequence[Row]], there: Mapping[str, Sequence[str]]) -> list[str]:
    """Say which commands have no row, and which rows no command, or another place than that. there: see readmes()."""
    found = []
    for readme in {**there, **rows}:
        wanted = [" ".join(one.split()) for one in there.get(readme, ())]
        given = [" ".join(row.command.split()) for row in rows.get(readme, ())]
        found += [f"{readme} has `{one}`, for which the table has no row" for one in wanted if one not in given]
        found += [f"the table has a row for `{one}`, which {readme} hasn't" for one in given if one not in wanted]
        if not found and wanted != given:
            found.append(f"the rows of {readme} are in another order than its commands, or one is there twice")
        for number, row in enumerate(rows.get(readme, ())):
            if row.after and " ".join(row.after.split()) not in given[:number]:
                found.append(f"`{row.command}` comes after `{row.after}`, which is no row of {readme} before it")
    return found


def run(root: Path, log: Path, environment: Mapping[str, str], ends: float) -> Iterator[Ran]:
    """Run the rows in the project's folder, their output in the log, and yield what came of each.

    ends: by the clock time.monotonic(). Raises UsageError unless the rows are those of the project's READMEs.
    """
    there, rows = readmes(root), table(root)
    if wrong := faults(rows, there):
        raise UsageError(f"{wrong[0]} ({len(wrong)} such): mend {TABLE}.")
    for readme, commands_there in there.items():
        exported = log.with_suffix(".environment")
        exported.unlink(missing_ok=True)
        right: set[str] = set()
        undo: list[str] = []
        try:
            for row, command in zip(rows[readme], commands_there, strict=True):
                if row.how == "not run":
                    continue
                text = row.run.strip() or command
                if lacks := TOO_LATE if time.monotonic() >= ends else _lacks(row, right):
                    yield Ran(readme, row, lacks=lacks)
                    continue
                undo = [one for one in undo if one != text] + [row.undo] * bool(row.undo)
                timeout_s = max(min(60 * row.minutes, ends - time.monotonic()), 0.0)
                size = log.stat().st_size if log.exists() else 0
                code, seconds = _run(text, root, log, exported, environment, timeout_s)
                with log.open("rb") as written:
                    written.seek(size)
                    output = written.read().decode(errors="replace")
                lacks = TOO_LATE if code is None and time.monotonic() >= ends else ""
                ran = Ran(readme, row, text, code, seconds, output, lacks)
                right |= {row.command} if ran.outcome == PASSED else set()
                yield ran
        finally:
            for text in reversed(undo):
                _run(text, root, log, exported, environment, QUICK_S)
            exported.unlink(missing_ok=True)


def _lacks(row: Row, right: set[str]) -> str:
    """Say why a row can't be run here; nothing where it can. right: the commands that ended as they should."""
    if row.after and row.after not in right:
        return f"`{row.after}` did not do its work"
    for need in row.needs:
        if need == NO_CLUSTER and STATE.exists():
            return "a virtual cluster is up already"
        if need == ROOT and os.geteuid() != 0:
            return "that takes root"
        if need not in (ROOT, NO_CLUSTER) and shutil.which(need) is None:
            return f"{need} is not on PATH"
    return ""


def _run(
    text: str, root: Path, log: Path, exported: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int | None, float]:
    with log.open("ab") as out:
        out.write(f"\n$ {text}\n".encode())
        out.flush()
        words = ["bash", "-c", IN_A_SHELL, "bash", str(exported), text]
        return carry_out(words, out, timeout_s=timeout_s, environment=environment, folder=root)
