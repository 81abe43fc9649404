"""Results of suites as the store of measured systems keeps them (systems/store.py)."""

from collections.abc import Sequence
from datetime import datetime

from engine.result.links import Rings
from engine.result.schema import Result
from systems import store


def links_of(result: Result) -> store.Measured:
    """A result of suites/bandwidth.py as the store has it, in five digits.

    Between nodes the ring of all of them counts.
    """
    links, origin = result.links, result.provenance
    assert links is not None

    def rates(several: Sequence[Rings]) -> dict[str, float]:
        return {f"{rings.apart}x{rings.ranks}": short(rings.bytes_per_s) for rings in several}

    def kinds(rings: Rings) -> store.Kinds:
        """The largest message of a kind is the first of its times."""
        return {one.kind: short(one.bytes_per_s) for one in reversed(rings.times)}

    options = [f"--{name.removesuffix('_s').replace('_', '-')} {value}" for name, value in _told(result)]
    inter = None
    if links.fitted:
        inter = store.Between(
            bytes_per_s=short(links.alone[-1].bytes_per_s),
            kinds=kinds(links.alone[-1]),
            shared=rates(links.shared),
            link_bytes_per_s=short(links.fitted.bytes_per_s),
            step_s=short(links.fitted.step_s),
            half_bytes=short(links.fitted.half_bytes),
        )
    commit = origin.git_commit and f"{origin.git_commit}{', modified' if origin.git_dirty else ''}"
    return store.Measured(
        date=datetime.fromisoformat(origin.end).date().isoformat(),
        source=store.Source(
            command=" ".join(["bench collectives", *options]),
            commit=commit,
            device=" and ".join(origin.devices),
            hosts=len(origin.hosts),
            ranks=result.ranks,
        ),
        message_bytes=links.message_bytes,
        devices_per_node=links.devices_per_node,
        intra=rates(links.within),
        intra_kinds={f"{rings.apart}x{rings.ranks}": kinds(rings) for rings in links.within},
        inter=inter,
    )


def superseded(before: store.Measured, found: store.Measured) -> str | None:
    """Why what was measured before says more than links measured since, or None."""
    if before.performance is not None and before.source.device == found.source.device:
        return "its calibration was fitted to the links that it has; par4d calibrate measures both anew"
    if before.inter is not None and found.inter is None:
        return "one node tells nothing of links between nodes"
    return None


def short(value: float) -> float:
    """In five digits."""
    return float(f"{value:.5g}")


def _told(result: Result) -> list[tuple[str, object]]:
    """The options of the command that were given."""
    return [
        (name, value)
        for name in ("device", "bytes", "repeats", "time_budget_s")
        if (value := result.config[name]) is not None
    ]
