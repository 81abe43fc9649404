"""Did NCCL take the network that its system expects between nodes? A figure over another isn't the system's."""

from typing import Any

from systems import Partition


def mismatch(system: str, partition: Partition, record: dict[str, Any]) -> str | None:
    """Say what is wrong with the network of a result; None if nothing is.

    A job of one node needs none. A network that isn't known is wrong too: nobody could tell the result from one over
    another network.
    """
    expected = partition.transport
    if expected is None or len(record["provenance"]["hosts"]) < 2:
        return None
    transport = record.get("transport")
    if transport is None:
        return f"the result doesn't say which network was taken, but {_wants(system, partition)}: run it again"
    for network in transport["networks"]:
        where = f"on {_ranks(network['ranks'])} (the first on {network['host']})"
        if network["name"] is None:
            return f"it isn't known which network NCCL took {where}: {network['unread']}; {_wants(system, partition)}"
        if network["name"] not in expected.networks.value:
            return f"NCCL took {network['name']} {where}, but {_wants(system, partition)}: {expected.remedy}"
        provider = network.get("provider")
        if expected.provider and provider and provider != expected.provider:
            return (
                f"NCCL took {network['name']} over libfabric's {provider} {where}, but {system} expects "
                f"{expected.provider}: {expected.remedy}"
            )
    return None


def _wants(system: str, partition: Partition) -> str:
    assert partition.transport is not None
    return f"{system} expects {' or '.join(partition.transport.networks.value)}"


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"
