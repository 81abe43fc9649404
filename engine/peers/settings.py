"""What peers are set to for speed, read from settings.yaml, where each setting has its source. No torch."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("settings.yaml")


@cache
def every() -> Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]:
    """The whole file: library, section, setting, then cpu, cuda and source."""
    found: Mapping[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def chosen(library: str, section: str, device: str) -> dict[str, Any]:
    """The settings of one section on "cpu" or "cuda", by name, as the library takes them."""
    return {name: row[device] for name, row in every()[library][section].items()}
