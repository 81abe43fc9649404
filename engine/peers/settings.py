"""Peers are set for speed, on this device and with what is installed. No torch."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from engine.peers.registry import OPTIONS
from engine.result.schema.peers import Setting


def here(module: str) -> bool:
    """Say whether it is installed for this Python."""
    return find_spec(module) is not None


def chosen(peers: str, section: str, device: str, installed: Callable[[str], bool] = here) -> dict[str, Any]:
    """Give the settings of one section on "cpu" or "cuda", by name, as the library takes them: those of processors
    where what a GPU's needs isn't installed.
    """
    return {
        name: option.cuda if device == "cuda" and (not option.needs or installed(option.needs)) else option.cpu
        for name, option in OPTIONS[peers][section].items()
    }


def without(library: str, device: str) -> dict[str, str]:
    """Name modules that this Python lacks, and what settings of that device need each and are as on processors."""
    lacking: dict[str, list[str]] = {}
    for options in OPTIONS.get(library, {}).values() if device == "cuda" else ():
        for name, option in options.items():
            if option.needs and option.cuda != option.cpu and not here(option.needs):
                lacking.setdefault(option.needs, []).append(name)
    return {module: ", ".join(names) for module, names in lacking.items()}


def environ(library: str | None, device: str) -> dict[str, str]:
    """Give what the environment of a library's processes has on that device."""
    if "environ" not in OPTIONS.get(library or "", {}):
        return {}
    return {name: str(value) for name, value in chosen(str(library), "environ", device).items() if value is not None}


def recorded(peer: str) -> tuple[Setting, ...]:
    """Give all settings of the peer of a comparison, whose name is that of its library, or begins with it."""
    named = [one for one in OPTIONS if peer == one or peer.startswith(f"{one}-")]
    if not named:
        return ()
    return tuple(
        Setting(
            name=f"{section}: {name}",
            cpu=_word(option.cpu),
            cuda=_word(option.cuda),
            needs=option.needs,
            source=option.source,
        )
        for section, options in OPTIONS[max(named, key=len)].items()
        for name, option in options.items()
    )


def _word(value: object) -> str:
    if value is None:
        return "its default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
