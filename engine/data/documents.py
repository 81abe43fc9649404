"""Documents of files of text: one a file, or one a line of a file of JSON Lines.

Text is UTF-8 without a zero byte, and a byte-order mark at its beginning is none of it. A file is of JSON Lines by its
name, or if its first line is an object that has a text.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE_CHARACTERS = 1 << 15
READ_BYTES = 1 << 20
LINES = (".jsonl", ".ndjson")
MAYBE_LINES = ".json"
"""End of names that are JSON Lines or one document."""
ENCODINGS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}

Report = Callable[[Path, str], None]
"""Taker of what is left out, and why."""


class NotText(ValueError):
    """A file is not text, or holds none; the message says why."""


def units(path: Path, key: str, report: Report) -> Iterator[str | None]:
    """Yield the text of a file's documents in pieces, and None after each document.

    key: under which an object of JSON Lines has its text. report: called for lines that are left out.

    Raises NotText, or OSError.
    """
    lines = is_lines(path, key)
    try:
        yield from _records(path, key, report) if lines else _whole(path)
    except UnicodeDecodeError:
        raise NotText(_why(path)) from None


def is_lines(path: Path, key: str) -> bool:
    """Return whether a file is of JSON Lines."""
    suffix = path.suffix.lower()
    if suffix != MAYBE_LINES:
        return suffix in LINES
    with path.open("rb") as file:
        try:
            return isinstance(_text_of(file.readline().decode("utf-8-sig"), key), str)
        except (NotText, UnicodeDecodeError):
            return False


def _whole(path: Path) -> Iterator[str | None]:
    """Yield a file's text in pieces that end at a line where one is near."""
    is_empty = True
    with path.open(encoding="utf-8-sig", newline="") as file:
        while piece := file.read(PIECE_CHARACTERS):
            piece += file.readline(PIECE_CHARACTERS)
            if "\0" in piece:
                raise NotText(_why(path))
            is_empty = False
            yield piece
    if not is_empty:
        yield None


def _records(path: Path, key: str, report: Report) -> Iterator[str | None]:
    is_empty = True
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = _text_of(line, key)
            except NotText as error:
                report(path, f"line {number} {error}")
                continue
            is_empty = False
            for start in range(0, len(text), PIECE_CHARACTERS):
                yield text[start : start + PIECE_CHARACTERS]
            yield None
    if is_empty:
        raise NotText(f"none of its lines is a JSON object with a text under {key!r}; --text-key names another")


def _text_of(line: str, key: str) -> str:
    """Return the text of an object in a line. Raises NotText."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise NotText("is not JSON") from None
    text = value.get(key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise NotText(f"has no text under {key!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotText("has half a surrogate pair") from None
    if "\0" in text:
        raise NotText("has a zero byte")
    return text


def _why(path: Path) -> str:
    """Return what a file has that text has not."""
    with path.open("rb") as file:
        start = file.read(8)
        for kind, mark in ((kind, mark) for known in (ENCODINGS, COMPRESSED) for mark, kind in known.items()):
            if start.startswith(mark):
                how = "compressed" if mark in COMPRESSED else "written"
                return f"it is {how} as {kind}, by its first bytes, and not text in UTF-8"
        file.seek(0)
        decoder, before = codecs.getincrementaldecoder("utf-8")(), 0
        while True:
            block = file.read(READ_BYTES)
            held = len(decoder.getstate()[0])
            zero = block.find(0)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                at = before - held + error.start
                if zero < 0 or at < before + zero:
                    return f"byte {at} is 0x{error.object[error.start]:02x}, which is not UTF-8"
            if zero >= 0:
                return f"byte {before + zero} is 0, as none of a text is"
            if not block:
                return "it is not UTF-8"
            before += len(block)
