"""Tokenizers: files tokenizer.json, as the library tokenizers writes them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.files import json_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
USUAL_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
DECIDING = ("added_tokens", "normalizer", "pre_tokenizer", "model")
"""Entries that decide which tokens a text becomes."""


def are_same(one: Path, other: Path) -> bool:
    """Return whether two files make the same tokens of a text. Raises UsageError for one that is no tokenizer."""
    return one.read_bytes() == other.read_bytes() or _deciding(one) == _deciding(other)


def _deciding(file: Path) -> dict[str, Any]:
    whole = json.loads(_open(file).to_str())  # as the library writes it
    return {key: whole.get(key) for key in DECIDING}


def open_tokenizer(path: Path, end: str | None) -> tuple[Path, "Tokenizer", int]:
    """Open the tokenizer of a folder, or a file; returns the file, it, and its token for the end of a text.

    end: that token, where the folder doesn't tell. Raises UsageError.
    """
    file = path / TOKENIZER if path.is_dir() else path
    tokenizer = _open(file)
    tokenizer.encode_special_tokens = True  # text that spells a special token is text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    names = [end] if end is not None else [*_ends(file.parent), *USUAL_ENDS]
    found = next((number for name in names if (number := _number(tokenizer, name)) is not None), None)
    if found is None:
        raise UsageError(
            f"The tokenizer {file} has no token {' or '.join(map(str, names))} to end a text with: name one by "
            "--end-of-text."
        )
    return file, tokenizer, found


def _open(file: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(file.read_bytes())
    except OSError as error:
        raise UsageError(f"The tokenizer {file} can't be read: {error.strerror}.") from None
    except Exception as error:  # the library raises no other kind, and the interpreter's own are let through
        raise UsageError(f"{file} is no tokenizer.json that can be read ({error}): copy it again.") from None


def _ends(folder: Path) -> list[str | int]:
    """List the tokens that end a text by what lies beside a tokenizer, the surest first."""
    found: list[str | int] = []
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        try:
            value = json_of((folder / name).read_text()).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        value = value[0] if isinstance(value, list) and value else value
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            found.append(value)
    return found


def _number(tokenizer: "Tokenizer", name: str | int) -> int | None:
    if isinstance(name, str):
        return tokenizer.token_to_id(name)
    return name if tokenizer.id_to_token(name) is not None else None
