"""Output of a command: a table or sentences for a person, or with --json a document for a program. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.output import columns, say

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
