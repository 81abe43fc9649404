"""Measure what rings of ranks send within a node and between nodes, the bandwidths of axonn-sc24 V-B.

Within a node all groups of a hierarchy (G0, G1) communicate at once, as the paper's database wants it. Between nodes
one rank a node does, with nothing beside it, in small messages too; then all ranks of the nodes in one ring, and in
more and more until each rank of a node is in one of its own, which tells how they share its way out (Eq. 7). On
processors a whole node sends small messages, too, and the result says how long a collective keeps them busy.

Or broadcasts between each two ranks, and among more and more of them, one after the other (colossal-ai, Fig. 10).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import torch

from engine.bench.frame import SMALLEST, Benchmark, Table, check_measurable
from engine.bench.groups import AXIS, Party, outer_groups, pairs
from engine.bench.world import Sampler, World
from engine.comm.collective import Kind
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.result.metrics import broadcast_bandwidth, ring_bandwidth
from engine.result.schema import Result
from engine.result.schema.bench import Broadcast, CollectiveTime, FittedLink, Links, Rings, Sampled
from engine.simulator.collectives import moved_bytes
from engine.simulator.link import RingTime, fit_link

log = logging.getLogger(__name__)

Name = Literal["all_gather", "reduce_scatter", "all_reduce"]
NAMES: tuple[Name, ...] = get_args(Name)
DTYPE = torch.float32
USUAL_BYTES = {"cpu": 1 << 24, "cuda": 10**9}  # the paper's on GPUs
EACH_TIME = 8
"""A message by the next smaller one."""
USUAL_BROADCAST = {"cpu": 1 << 24, "cuda": 125 * 10**6}  # the paper's on GPUs
MOST_RANKS_IN_PAIRS = 64
BUFFERS = 6
"""Messages of the largest size that a rank may hold: its own, a collective's, and what ranks of a host share."""


@dataclass(frozen=True, slots=True)
class Collectives(Benchmark):
    """Bandwidths of rings. message_bytes: of the largest; None takes the usual, or less where memory is small.

    pairs: whether broadcasts are measured instead.
    """

    message_bytes: float | None
    repeats: int
    time_budget_s: float
    pairs: bool = False

    kind, dtype = "collectives", "fp32"
    unmeasured = "No bandwidth could be measured"
    lost = "No bandwidth could be measured: it failed with"
    between_ranks = True

    def check(self, launch: Launch, device: torch.device) -> None:
        if launch.world_size < 2:
            raise UsageError(
                "A collective takes two ranks at least: start several, such as by torchrun --nproc-per-node 2."
            )
        if self.pairs and launch.world_size > MOST_RANKS_IN_PAIRS:
            raise UsageError(
                f"--pairs measures each pair of ranks for itself, of at most {MOST_RANKS_IN_PAIRS} ranks, but "
                f"{launch.world_size} were started: start fewer."
            )
        check_measurable(
            "A message", num_bytes=self.message_bytes, repeats=self.repeats, time_budget_s=self.time_budget_s
        )

    @property
    def config(self) -> dict[str, Any]:
        asked = {"bytes": self.message_bytes, "repeats": self.repeats, "time_budget_s": self.time_budget_s}
        return asked | ({"pairs": True} if self.pairs else {})

    def measure(self, world: World, found: dict[str, Any]) -> None:
        found["links"] = self.broadcasts(world) if self.pairs else self.links(world)

    def broadcasts(self, world: World) -> Links:
        """Measure a message to each other rank, and to more and more. Collective. Raises Unmeasurable as links does."""
        nodes, usual = world.nodes(), USUAL_BROADCAST[world.device.type]
        size = world.size_of_buffers(self.message_bytes, usual, SMALLEST, BUFFERS, "messages of {:.3g} GB take")
        (message,) = world.zeros(DTYPE, size // DTYPE.itemsize)
        groups = list_groups(world.size)
        sampler = Sampler(world, self.repeats, self.time_budget_s, len(groups))
        found = []
        for group in groups:
            found.append(_time_broadcast(group, world.comm, message, sampler))
            log.info("broadcast among ranks %s: %.4g GB/s", " ".join(map(str, group)), found[-1].bytes_per_s / 1e9)
        return Links(
            nodes=len(nodes),
            devices_per_node=len(nodes[0]),
            message_bytes=message.numel() * DTYPE.itemsize,
            broadcasts=tuple(found),
        )

    def links(self, world: World) -> Links:
        """Measure all that these ranks can tell. Collective. Raises Unmeasurable where the buffers don't fit."""
        nodes, usual = world.nodes(), USUAL_BYTES[world.device.type]
        size = world.size_of_buffers(self.message_bytes, usual, SMALLEST, BUFFERS, "messages of {:.3g} GB take")
        elements = size // DTYPE.itemsize
        message_bytes = elements * DTYPE.itemsize
        buffers = world.zeros(DTYPE, elements, elements // 2)  # a whole message, and a rank's piece of one
        patterns = _list_patterns(nodes, sizes(message_bytes), on_processors=world.device.type == "cpu")
        measurements = len(NAMES) * sum(len(one.lengths) for of in patterns for one in of)
        sampler = Sampler(world, self.repeats, self.time_budget_s, measurements)
        within, alone, shared = (
            tuple(_measure_rings(one, world.comm, buffers, sampler) for one in of) for of in patterns
        )
        return Links(
            nodes=len(nodes),
            devices_per_node=len(nodes[0]),
            message_bytes=message_bytes,
            within=within,
            alone=alone,
            shared=shared,
            fitted=_fit(alone),
        )

    @staticmethod
    def table(result: Result) -> Table:
        assert result.links is not None
        measured = [(f"{rings.ranks} ranks, {rings.apart} apart", rings) for rings in result.links.within]
        measured += [(f"one rank on each of {rings.nodes} nodes", rings) for rings in result.links.alone]
        rates = [(words, rings.bytes_per_s) for words, rings in measured]
        sent = [(f"ranks {' '.join(map(str, one.ranks))}", one.bytes_per_s) for one in result.links.broadcasts]
        head = "broadcast" if sent else "ring"
        return (head, "GB/s"), [(words, f"{rate / 1e9:.3g}") for words, rate in [*rates, *sent]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Groups that communicate at once."""

    apart: int
    """Distance of the ranks of a group."""
    groups: list[tuple[int, ...]]
    nodes: int
    """Nodes over which a group spans."""
    lengths: list[int]
    """Messages' lengths in bytes, the largest first."""


def _list_patterns(
    nodes: Sequence[Sequence[int]], lengths: list[int], *, on_processors: bool
) -> tuple[list[Pattern], list[Pattern], list[Pattern]]:
    """List the patterns within nodes, of one rank a node, and of all ranks of all nodes. nodes: their ranks."""
    devices, ranks = len(nodes[0]), [rank for node in nodes for rank in node]
    within, alone, shared = list[Pattern](), list[Pattern](), list[Pattern]()
    for g0, g1 in pairs(devices):
        groups = [group for node in nodes for group in outer_groups(node, g0, g1)]
        within.append(Pattern(g0, groups, 1, lengths if on_processors and g1 == devices else lengths[:1]))
    if len(nodes) > 1:
        for count in sorted({2, len(nodes)}):
            alone.append(Pattern(devices, [tuple(node[0] for node in nodes[:count])], count, lengths))
        for g0 in range(1, devices + 1):
            if devices % g0 == 0 and devices > 1:
                shared.append(Pattern(g0, outer_groups(ranks, g0, len(ranks) // g0), len(nodes), lengths[:1]))
    return within, alone, shared


def sizes(largest: int) -> list[int]:
    """Return sizes of messages in bytes, the largest first.

    >>> sizes(1 << 18)
    [262144, 32768, 4096]
    """
    found = [largest]
    while found[-1] // EACH_TIME >= SMALLEST:
        found.append(found[-1] // EACH_TIME)
    return found


def list_groups(ranks: int) -> list[tuple[int, ...]]:
    """List each pair of ranks, then the first 4, 8 ... and all.

    >>> list_groups(3)
    [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    """
    counts = sorted({*(2**power for power in range(2, ranks.bit_length()) if 2**power <= ranks), ranks} - {2})
    return [*combinations(range(ranks), 2), *(tuple(range(count)) for count in counts)]


def _time_broadcast(group: tuple[int, ...], comm: Comm, message: torch.Tensor, sampler: Sampler) -> Broadcast:
    party = Party([group], comm)

    def send(own: Comm) -> None:
        own.issue(Kind.BROADCAST, AXIS, message, root=0, at_once=True, unavoidable=True).wait()

    found = sampler.take(lambda calls: party.seconds(send, calls))
    num_bytes = message.numel() * message.element_size()
    rate = broadcast_bandwidth(num_bytes, found.median_s)
    return Broadcast(ranks=group, bytes_per_s=rate, **found.model_dump(include=set(Sampled.model_fields)))


def _measure_rings(of: Pattern, comm: Comm, buffers: Sequence[torch.Tensor], sampler: Sampler) -> Rings:
    """Time all collectives in groups that communicate at once, with messages of each length."""
    party, groups = Party(of.groups, comm), len(of.groups)
    ranks = groups * party.size
    times = tuple(
        _time_collective(party, buffers, name, length, sampler, ranks) for length in of.lengths for name in NAMES
    )
    together = times[: len(NAMES)]  # of the largest message
    rate = ring_bandwidth(sum(one.moved_bytes for one in together), sum(one.median_s for one in together))
    log.info(
        "%d rings of %d ranks, %d apart, over %d nodes: %.4g GB/s", groups, party.size, of.apart, of.nodes, rate / 1e9
    )
    return Rings(apart=of.apart, ranks=party.size, groups=groups, nodes=of.nodes, times=times, bytes_per_s=rate)


def _time_collective(
    party: Party, buffers: Sequence[torch.Tensor], name: Name, length: int, sampler: Sampler, ranks: int
) -> CollectiveTime:
    """Time a collective. ranks: how many communicate in all groups together."""
    kind = Kind(name)
    elements = max(1, length // DTYPE.itemsize // party.size) * party.size
    input_bytes = elements * DTYPE.itemsize // (party.size if kind is Kind.ALL_GATHER else 1)
    moved = moved_bytes(kind, input_bytes, party.size)
    whole, piece = buffers[0][:elements], buffers[1][: elements // party.size]
    source = piece if kind is Kind.ALL_GATHER else whole
    out = {Kind.ALL_GATHER: whole, Kind.REDUCE_SCATTER: piece}.get(kind)
    found = sampler.take(lambda calls: party.seconds(lambda comm: comm.run(kind, AXIS, source, out=out), calls))
    processor_s = found.processor_s / ranks if party.on_processors else None
    return CollectiveTime(
        kind=name,
        input_bytes=input_bytes,
        moved_bytes=moved,
        bytes_per_s=ring_bandwidth(moved, found.median_s),
        processor_s=processor_s,
        **found.model_dump(include=set(Sampled.model_fields)),
    )


def _fit(alone: Sequence[Rings]) -> FittedLink | None:
    if not alone:
        return None
    link = fit_link(
        [RingTime(Kind(one.kind), one.input_bytes, rings.ranks, one.median_s) for rings in alone for one in rings.times]
    )
    return FittedLink(bytes_per_s=link.bytes_per_s, step_s=link.step_s, half_bytes=link.half_bytes)
