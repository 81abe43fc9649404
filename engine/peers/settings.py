"""What peers are set to for speed, read from settings.yaml, where each setting has its source. No torch."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine import yaml_text
from engine.result.peers import Setting

FILE = Path(__file__).with_name("settings.yaml")


@cache
def every() -> Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]:
    """The whole file: peers, section, setting, then cpu, cuda, source, and needs where a kernel has to be installed."""
    found: Mapping[str, Any] = yaml_text.parse(FILE.read_text())
    return found


def here(module: str) -> bool:
    """Whether it is installed for this Python."""
    return find_spec(module) is not None


def chosen(peers: str, section: str, device: str, installed: Callable[[str], bool] = here) -> dict[str, Any]:
    """The settings of one section on "cpu" or "cuda", by name, as the library takes them: those of processors where
    what a GPU's needs isn't installed.
    """
    return {
        name: row[device] if "needs" not in row or installed(row["needs"]) else row["cpu"]
        for name, row in every()[peers][section].items()
    }


def without(library: str, device: str) -> dict[str, str]:
    """Modules that this Python lacks, by name, and what settings of that device need it and are as on processors."""
    lacking: dict[str, list[str]] = {}
    for rows in every().get(library, {}).values():
        for name, row in rows.items():
            if "needs" in row and row[device] != row["cpu"] and not here(row["needs"]):
                lacking.setdefault(row["needs"], []).append(name)
    return {module: ", ".join(names) for module, names in lacking.items()}


def environ(library: str | None, device: str) -> dict[str, str]:
    """What the environment of a library's processes has on that device."""
    if "environ" not in every().get(library or "", {}):
        return {}
    return {name: str(value) for name, value in chosen(str(library), "environ", device).items() if value is not None}


def told(peer: str) -> tuple[Setting, ...]:
    """All settings of the peer of a contest, whose name is that of its library, or begins with it."""
    named = [one for one in every() if peer == one or peer.startswith(f"{one}-")]
    if not named:
        return ()
    return tuple(
        Setting(
            name=f"{section}: {name}", cpu=_word(row["cpu"]), cuda=_word(row["cuda"]), needs=row.get("needs"),
            source=row["source"],
        )
        for section, rows in every()[max(named, key=len)].items()
        for name, row in rows.items()
    )  # fmt: skip


def _word(value: object) -> str:
    if value is None:
        return "its default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
