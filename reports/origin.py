"""Which job a row is of: labels, software, machine and file, the same columns of a run as of a contest."""

from collections.abc import Mapping, Sequence

from engine.result.schema import Provenance, Transport
from reports import transports
from reports.text import clean

COLUMNS = [
    *("system", "partition", "study", "devices", "versions", "hosts", "launcher", "commit", "dirty", "start", "end"),
    *("source", "network", "transport", "remark"),
]


def columns(
    labels: Mapping[str, str], origin: Provenance, transport: Transport | None, source: str, remark: str
) -> dict[str, object]:
    return {
        **{name: clean(labels.get(name, "")) for name in ("system", "partition", "study")},
        "devices": names(origin.devices),
        "versions": clean(", ".join(f"{name} {version}" for name, version in sorted(origin.versions.items()))),
        "hosts": names(origin.hosts),
        "launcher": clean(origin.launcher),
        "commit": clean(origin.git_commit or ""),
        "dirty": {True: "modified", False: "clean", None: "unknown"}[origin.git_dirty],
        "start": origin.start,
        "end": origin.end,
        "source": clean(source, 4000),
        "network": transports.network(transport),
        "transport": transports.words(transport),
        "remark": remark,
    }


def names(listed: Sequence[str]) -> str:
    """Host or device names, each once, the first few of a long list and how many there are."""
    unique = list(dict.fromkeys(listed))
    more = f" and {len(unique) - 4} more" if len(unique) > 5 else ""
    return clean(", ".join(unique[: 4 if more else 5]) + more)
