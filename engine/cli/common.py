"""Output of a command: a table or sentences for a person, or with --json a document for a program. No torch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.comm.launch import Launch, from_environment
from engine.loading import check
from engine.options import check_file
from engine.output import columns, log_to_stderr, say

Json = Annotated[bool, Parameter(help="print a document for programs instead of words", negative=())]


def write(words: str, document: object, *, as_json: bool) -> None:
    """Write the words or the document to stdout. document: in JSON's types, or the path of a file that holds it."""
    kept = isinstance(document, Path)
    if not as_json:
        say(f"{words}\n", kept=kept)
    elif isinstance(document, Path):
        say(f"{document.read_text().rstrip()}\n", kept=kept)
    else:
        say(json.dumps(document) + "\n")


def facts(rows: Mapping[str, str]) -> str:
    """Write a line for each name and its figure."""
    return columns(rows.items(), left=2)


def size(num_bytes: float) -> str:
    """Write three digits, in the largest of GB, MB, kB and bytes that leaves one before the point."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def take_place(out: Path | None = None) -> Launch:
    """Find this process among all, and send its messages to stderr.

    Raises UsageError if out can't be written, or the environment tells OpenMP what it can't follow.
    """
    check(os.environ)
    if out is not None:
        check_file("--out", out)
    launch = from_environment(os.environ)
    log_to_stderr(launch.rank)
    return launch
