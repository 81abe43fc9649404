"""Which network carried a job's collectives, in words: what parts points from another, and what provenance says."""

from engine.result.transport import Network, Transport
from reports.text import clean


def network(transport: Transport | None) -> str:
    """The networks by name, each once: Socket on hsn0, AWS Libfabric (cxi), tcp. "" where none is recorded.

    Results of earlier versions and of single ranks have none; a network that could not be read is "unknown".
    """
    return clean(" and ".join(sorted({_name(one) for one in transport.networks})), 120) if transport else ""


def words(transport: Transport | None) -> str:
    """The same with the back end, its library and its plug-in: nccl, NCCL 2.21.5: Socket on hsn0. "" for none."""
    if transport is None:
        return ""
    names = (transport.backend, transport.library, transport.plugin)
    return clean(f"{', '.join(word for word in names if word)}: {network(transport)}", 200)


def _name(one: Network) -> str:
    provider = f" ({one.provider})" if one.provider else ""
    on = f" on {one.interfaces}" if one.interfaces else ""
    return f"{one.name or 'unknown'}{provider}{on}"
