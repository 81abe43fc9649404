"""Files beside a network's config.json and its weights: read where numbers depend on them, else named. No torch."""

import math
from collections.abc import Iterator
from pathlib import Path

from engine.data.images import Images
from engine.data.tokenizer import TOKENIZER
from engine.errors import UsageError
from engine.models.adapters.safetensors import INDEX, read_json
from engine.models.architecture import Architecture

COPIED = ("*.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.jinja", "*.md", "LICENSE*")
"""An export copies these as they are."""
OF_TOKENIZERS = ("tokenizer*", "vocab*", "merges.txt", "*.model", "added_tokens.json", "special_tokens_map.json")
"""Of these, those that say what a text's tokens are."""
PREPROCESSOR = "preprocessor_config.json"
READ = ("config.json", "scheduler_config.json", PREPROCESSOR, TOKENIZER, f"*{INDEX}")
"""Of these, those that are read and checked."""
MIDDLE = 0.5
"""A colour from 0 to 1 is trained on as (colour - MIDDLE) / MIDDLE."""


def copied(folder: Path) -> Iterator[Path]:
    """List the files that an export copies, each once."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and any(file.match(pattern) for pattern in COPIED):
            yield file


def unread(folder: Path) -> list[str]:
    """Name those of them that nothing here reads."""
    return [file.name for file in copied(folder) if not any(file.match(pattern) for pattern in (*READ, *OF_TOKENIZERS))]


def check_json(folder: Path) -> None:
    """Raise UsageError for a file of JSON that an export would copy and nobody could read."""
    for file in copied(folder):
        if file.suffix == ".json":
            read_json(file)


def check_preprocessor(folder: Path, architecture: Architecture) -> None:
    """Raise UsageError where a folder's network has learnt from other colours, or other sizes, than those that it is
    given here.
    """
    file, data = folder / PREPROCESSOR, architecture.task.data
    if not isinstance(data, Images) or not file.is_file():
        return
    given = read_json(file)
    size = given.get("size", data.side)
    sides = list(size.values()) if isinstance(size, dict) else [size]
    here: dict[str, tuple[object, bool]] = {
        "do_rescale": (True, given.get("do_rescale", True) is True),
        "rescale_factor": (1 / 255, _is_near(given.get("rescale_factor", 1 / 255), 1 / 255)),
        "do_normalize": (True, given.get("do_normalize", True) is True),
        "image_mean": (MIDDLE, _is_everywhere(given.get("image_mean", MIDDLE))),
        "image_std": (MIDDLE, _is_everywhere(given.get("image_std", MIDDLE))),
        "size": (data.side, bool(sides) and all(side == data.side for side in sides)),
    }
    for name, (known, fits) in here.items():
        if not fits:
            raise UsageError(
                f"{file} has {name}={given[name]!r}, but images are given to the network here with {known!r}: it would "
                "learn anew what it knows."
            )


def _is_near(value: object, known: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, known, rel_tol=1e-6)


def _is_everywhere(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(_is_near(one, MIDDLE) for one in values)
