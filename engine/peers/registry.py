"""Peers that files of known/ describe, what their libraries are set to, and the environments of those whose pins
contradict ours: .venv-peers/LIBRARY, made by ci/peers. No torch.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from engine import yaml_text
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.peers.comparison import Comparison, Habits, Option
from engine.peers.layout import SPLITS
from engine.result import ANOTHER_COMMIT, UNTUNED

if TYPE_CHECKING:
    from engine.result.schema.peers import Setting

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-peers"

Settings = Mapping[str, Mapping[str, Mapping[str, Option]]]
"""By the name of a peer or with which it begins, by what takes them (a class, a function, a file, or the environment of
its processes, environ), and by their own.
"""


def read_known(path: Path) -> tuple[list[Comparison], Settings]:
    """Read a file of known/: `peers` with the fields of a Comparison each, `memory` among them, and `settings`.

    No pydantic, as every command's help has the names. Raises UsageError.
    """
    known = yaml_text.parse(path.read_text())
    peers: list[Comparison] = []
    for name, peer in known["peers"].items():
        if "memory" not in peer:
            raise UsageError(f"{path.name} has no memory of the peer {name}: say how it uses memory, as Habits has it.")
        try:
            parts = {"grid": Grid(**peer["grid"]), "memory": _make(Habits, peer["memory"])}
            peers.append(_make(Comparison, {"name": name} | peer | parts))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path.name} describes no peer {name}: {error}.") from None
    settings = {
        peer: {
            section: {name: Option(**option) for name, option in options.items()}
            for section, options in sections.items()
        }
        for peer, sections in known["settings"].items()
    }
    return peers, settings


Made = TypeVar("Made", Comparison, Habits)


def _make(kind: type[Made], given: Mapping[str, Any]) -> Made:
    """Make a record, its lists as tuples. Raises TypeError, and ValueError for none of a field's values."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    record = kind(**values)
    for name, hint in get_type_hints(kind).items():
        allowed = get_args(hint) if get_origin(hint) is Literal else ()
        if allowed and getattr(record, name) not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}, but {getattr(record, name)!r} was given")
    if isinstance(record, Comparison) and (unknown := set(record.splits) - set(SPLITS)):
        raise ValueError(f"splits are some of {', '.join(SPLITS)}, but {', '.join(sorted(unknown))} was given")
    return record


_FILES = [read_known(path) for path in sorted((Path(__file__).parent / "known").glob("*.yaml"))]

COMPARISONS: Mapping[str, Comparison] = {
    comparison.name: comparison
    for comparison in sorted(
        (comparison for peers, _ in _FILES for comparison in peers),
        key=lambda comparison: (bool(comparison.splits), comparison.grid.size),
    )
}
"""By name: those in processes of the engine come first, and those of fewer ranks."""

OPTIONS: Settings = {peer: sections for _, settings in _FILES for peer, sections in settings.items()}

ALONE = tuple(name for name, comparison in COMPARISONS.items() if not comparison.splits and not comparison.axes)
"""Peers that take one device."""

OWN_COMPARISON = Comparison(
    UNTUNED,
    "the engine without its tuner",
    Grid(),
    "engine.peers.ours:Ours",
    tuple(axis.value for axis in Axis),
    target=None,
    tunes=True,
    together=True,
    sums_in_fp32=True,
    scales_loss=True,
)
"""Shows what a tuned engine gains over itself. It is run only where it is named."""


def another_commit(checkout: Path) -> Comparison:
    """Compare with the engine of another commit, in that folder, with all that ours is set to. Raises UsageError where
    that commit can't be asked.
    """
    if not (checkout / "engine" / "peers" / "pickled.py").is_file():
        raise UsageError(f"{checkout} has no engine that can be a peer: take the folder of a commit that can.")
    peer = "the engine of another commit"
    return replace(OWN_COMPARISON, name=ANOTHER_COMMIT, peer=peer, tunes=False, checkout=str(checkout.resolve()))


def python_of(library: str | None) -> Path:
    """Return where a library's Python would be. None is ours."""
    return ENVIRONMENTS / library / "bin" / "python" if library else Path(sys.executable)


def environment_lack(library: str | None) -> str | None:
    """Say what to do where an environment isn't there, or isn't whole; None where it is. None is ours."""
    if library is None or ((ENVIRONMENTS / library / "par4d-installed").exists() and python_of(library).exists()):
        return None
    with suppress(OSError):
        why = (ENVIRONMENTS / f"{library}.failed").read_text().strip()
        return f"{library} couldn't be installed here: {why}"
    return f"{library} has no environment here: make it by ci/peers {library}."


def has_module(module: str, library: str | None = None) -> bool:
    """Say whether a module, or a package of them, is installed in a library's environment. None is ours."""
    if library is None:
        return find_spec(module) is not None
    return any((ENVIRONMENTS / library).glob(f"lib/python3*/site-packages/{module}*"))


def choose_settings(
    peers: str, section: str, device: str, installed: Callable[[str], bool] = has_module
) -> dict[str, Any]:
    """Return the settings of one section on "cpu" or "cuda", by name, as the library takes them: those of processors
    where what a GPU's needs isn't installed.
    """
    return {
        name: option.cuda if device == "cuda" and (not option.needs or installed(option.needs)) else option.cpu
        for name, option in OPTIONS[peers][section].items()
    }


def missing_modules(library: str, device: str) -> dict[str, str]:
    """Name modules that this Python lacks, and what settings of that device need each and are as on processors."""
    missing: dict[str, list[str]] = {}
    for options in OPTIONS.get(library, {}).values() if device == "cuda" else ():
        for name, option in options.items():
            if option.needs and option.cuda != option.cpu and not has_module(option.needs):
                missing.setdefault(option.needs, []).append(name)
    return {module: ", ".join(names) for module, names in missing.items()}


def choose_environ(library: str | None, device: str) -> dict[str, str]:
    """Return what the environment of a library's processes has on that device."""
    if library is None or "environ" not in OPTIONS.get(library, {}):
        return {}
    settings = choose_settings(library, "environ", device)
    return {name: str(value) for name, value in settings.items() if value is not None}


def record_settings(peer: str) -> "tuple[Setting, ...]":
    """List all settings of a peer, whose name is that of its library, or begins with it."""
    from engine.result.schema.peers import Setting

    libraries = [library for library in OPTIONS if peer == library or peer.startswith(f"{library}-")]
    if not libraries:
        return ()
    return tuple(
        Setting(
            name=f"{section}: {name}",
            cpu=_word(option.cpu),
            cuda=_word(option.cuda),
            needs=option.needs,
            source=option.source,
        )
        for section, options in OPTIONS[max(libraries, key=len)].items()
        for name, option in options.items()
    )


def _word(value: object) -> str:
    if value is None:
        return "its default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
