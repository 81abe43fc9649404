"""Columns that tell a row's job: labels, software, machine and file, the same columns of a run as of a contest."""

import re
from collections.abc import Mapping, Sequence

from engine.result.schema import Provenance, Transport
from engine.result.schema.machine import Interconnect
from reports.page import BINDING
from reports.text import clean, positive

COLUMNS = [
    *("system", "partition", "study", "devices", "versions", "hosts", "launcher", "commit", "dirty", "start", "end"),
    *("source", "network", "transport", "remark", BINDING, "clocks", "network_settings"),
]
SETTINGS = re.compile(r"(NCCL|RCCL|GLOO|FI|UCX|MPICH)_\w+|CUDA_DEVICE_MAX_CONNECTIONS|HSA_ENABLE_SDMA")
"""Variables that steer the libraries of the network."""


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
        "network": network(transport),
        "transport": words(transport),
        "remark": remark,
        BINDING: clean(" ".join(fault.said for fault in origin.bindings.faults), 1600) if origin.bindings else "",
        "clocks": clocks(origin.clocks_hz),
        "network_settings": network_settings(origin.environment),
    }


def names(listed: Sequence[str]) -> str:
    """Return host or device names, each once, the first few of a long list and how many there are."""
    unique = list(dict.fromkeys(listed))
    more = f" and {len(unique) - 4} more" if len(unique) > 5 else ""
    return clean(", ".join(unique[: 4 if more else 5]) + more)


def clocks(rates_hz: Mapping[str, float]) -> str:
    """Write the clocks of a job's hosts, the least and the greatest; "" where no host told its own."""
    known = sorted(rate for rate in rates_hz.values() if positive(rate) == rate)
    ends = dict.fromkeys(f"{rate / 1e9:.2f}" for rate in (known[0], known[-1])) if known else ()
    return f"{' to '.join(ends)} GHz" if ends else ""


def network_settings(environment: Mapping[str, str]) -> str:
    """Write the variables that steer the network's libraries, with their values; "" for none."""
    return clean(" ".join(f"{name}={environment[name]}" for name in sorted(environment) if SETTINGS.fullmatch(name)))


def network(transport: Transport | None) -> str:
    """Return the networks by name, each once: Socket on hsn0, AWS Libfabric (cxi), tcp. "" where none is recorded.

    Results of earlier versions and of single ranks have none; a network that could not be read is "unknown".
    """
    return clean(" and ".join(sorted({_name(one) for one in transport.networks})), 120) if transport else ""


def words(transport: Transport | None) -> str:
    """Give the same with the back end, its library and its plug-in: nccl, NCCL 2.21.5: Socket on hsn0. "" for none."""
    if transport is None:
        return ""
    names = (transport.backend, transport.library, transport.plugin)
    return clean(f"{', '.join(word for word in names if word)}: {network(transport)}", 200)


def _name(one: Interconnect) -> str:
    provider = f" ({one.provider})" if one.provider else ""
    on = f" on {one.interfaces}" if one.interfaces else ""
    return f"{one.name or 'unknown'}{provider}{on}"
