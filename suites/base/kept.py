"""Conversion of results to what the store of measured systems keeps (systems/store.py)."""

from collections.abc import Sequence
from datetime import datetime
from typing import get_args

from engine.comm.collective import Kind
from engine.result.schema import Result
from engine.result.schema.bench import Rings
from engine.simulator.link import RingTime, fit_link, fit_taken
from systems import store


def links_of(result: Result) -> store.Measured:
    """Make what the store keeps, in five digits, of a result of suites/bandwidth.py.

    Between nodes the ring of all of them counts.
    """
    links, origin = result.links, result.provenance
    assert links is not None

    def rates(several: Sequence[Rings]) -> dict[str, float]:
        return {f"{rings.apart}x{rings.ranks}": short(rings.bytes_per_s) for rings in several}

    def kinds(rings: Rings) -> store.Kinds:
        """Return the rates of the largest messages, which are the first of each kind."""
        return {one.kind: short(one.bytes_per_s) for one in reversed(rings.times)}

    given = {name: result.config[name] for name in ("device", "bytes", "repeats", "time_budget_s")}
    options = [
        f"--{name.removesuffix('_s').replace('_', '-')} {value}" for name, value in given.items() if value is not None
    ]
    inter = None
    if links.fitted:
        inter = store.Between(
            bytes_per_s=short(links.alone[-1].bytes_per_s),
            kinds=kinds(links.alone[-1]),
            shared=rates(links.shared),
            link_bytes_per_s=short(links.fitted.bytes_per_s),
            step_s=short(links.fitted.step_s),
            half_bytes=short(links.fitted.half_bytes),
            processor=_processor([*links.alone, *links.shared]),
        )
    of_node = [rings for rings in links.within if rings.ranks == links.devices_per_node]
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
        intra_step_s=_step_s(of_node),
        intra_processor=_processor(of_node),
        inter=inter,
    )


def superseded(before: store.Measured, found: store.Measured) -> str | None:
    """Say why what was measured before says more than links measured since, or None."""
    if before.performance is not None and before.source.device == found.source.device:
        return "its calibration was fitted to the links that it has; par4d calibrate measures both anew"
    if before.inter is not None and found.inter is None:
        return "one node says nothing of links between nodes"
    return None


def short(value: float) -> float:
    """Return the value in five digits."""
    return float(f"{value:.5g}")


def _timed(several: Sequence[Rings], kind: str, *, processor: bool) -> list[RingTime]:
    """Return the times of a kind of collective, or its processor seconds where they were measured."""
    found = [(one, one.processor_s if processor else one.median_s, rings) for rings in several for one in rings.times]
    return [RingTime(Kind(kind), one.input_bytes, rings.ranks, s) for one, s, rings in found if one.kind == kind and s]


def _processor(several: Sequence[Rings]) -> dict[store.Name, store.OfProcessor]:
    """Return the processor time that each kind of collective takes, where that was measured."""
    taken = {}
    for kind in get_args(store.Name):
        if times := _timed(several, kind, processor=True):
            found = fit_taken(times)
            taken[kind] = store.OfProcessor(step_s=short(found.step_s), byte_s=short(found.byte_s))
    return taken


def _step_s(several: Sequence[Rings]) -> float | None:
    """Return the latency of a ring's step, where messages of several sizes were sent."""
    if not any(len({one.moved_bytes for one in rings.times}) > len(get_args(store.Name)) for rings in several):
        return None
    times = [one for kind in get_args(store.Name) for one in _timed(several, kind, processor=False)]
    return short(fit_link(times).step_s)
