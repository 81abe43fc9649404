"""What rings of ranks send within a node and between nodes: the bandwidths of axonn-sc24 V-B, measured.

Within a node all groups of a hierarchy (G0, G1) communicate at once, as the paper's database wants it. Between nodes
one rank a node does, with nothing beside it, in small messages too; then all ranks of the nodes in one ring, and in
more and more until each rank of a node is in one of its own, which tells how they share its way out (Eq. 7). Of
processors it is also told what a collective takes of them, and a whole node sends small messages, too.
"""

import logging
import os
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch

from engine.bench.at_once import LOST, AtOnce, at_once, check_budget, first_line
from engine.bench.gemm import free_bytes
from engine.bench.record import Begun
from engine.bench.rings import nodes_of, outer_groups, pairs
from engine.bench.turns import FEWEST, Samples, Turns
from engine.comm.collective import Kind, Lane
from engine.comm.funnel import Comm
from engine.comm.groups import ProcessGroups
from engine.comm.launch import Launch, choose_device
from engine.comm.transport import backend_of, listen
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.measure.clock import HostClock
from engine.planning.collectives import moved_bytes
from engine.planning.link import Timed, fit_link
from engine.result.links import CollectiveTime, FittedLink, Links, Rings
from engine.result.metrics import ring_bandwidth
from engine.result.schema import Result
from engine.timeouts import Timeouts
from engine.training.gathered import everyones

log = logging.getLogger(__name__)

Name = Literal["all_gather", "reduce_scatter", "all_reduce"]
NAMES: tuple[Name, ...] = get_args(Name)
DTYPE = torch.float32
USUAL_BYTES = {"cpu": 1 << 24, "cuda": 10**9}  # the paper's on GPUs
SMALLEST = 4096
LARGEST = 2**40
EACH_TIME = 8
"""From one size of messages to the next."""
BUFFERS = 6
"""Of the largest message, that a rank may hold at once: its own, a collective's, and what ranks of a host share."""


class Unmeasurable(Exception):
    """Why there is no bandwidth, the end of a sentence."""


class Party:
    """What this rank sends while groups communicate; one that is in no group sends nothing. Made by all at once."""

    def __init__(self, groups: Sequence[tuple[int, ...]], ranks: Comm, buffers: tuple[torch.Tensor, torch.Tensor]):
        self.size = len(groups[0])
        self.on_processors = ranks.device.type == "cpu"
        self._whole, self._piece = buffers
        self._clock = HostClock(ranks.device)
        own = next((group for group in groups if ranks.rank in group), (ranks.rank,))
        grid, device, timeout = Grid(data=len(own)), ranks.device, ranks.timeout
        backend = ProcessGroups(grid, device, timeout, own)
        self._own = own
        self._comm = Comm(grid, timeout=timeout, device=device, backend=backend, outstanding=ranks.outstanding)
        if grid.size == 1:  # torch names a group by how many its ranks have made: this rank makes one, too
            backend.channel(Axis.DATA, Lane.MAIN, (0,))

    def seconds(self, kind: Kind, elements: int, calls: int) -> float:
        """Of so many calls. elements: of the whole buffer, a multiple of the group's size."""
        if self._comm.grid.size == 1:
            return 0.0
        whole, piece = self._whole[:elements], self._piece[: elements // self.size]
        source = piece if kind is Kind.ALL_GATHER else whole
        out = {Kind.ALL_GATHER: whole, Kind.REDUCE_SCATTER: piece}.get(kind)
        self._comm.outstanding.ranks = self._own
        start = self._clock.stamp()
        for _ in range(calls):
            self._comm.run(kind, Axis.DATA, source, out=out)
        seconds = self._clock.seconds(start, self._clock.stamp_end())
        self._comm.outstanding.ranks = None
        return seconds


def links(ranks: AtOnce, device: torch.device, message_bytes: int | None, turns: Turns) -> Links:
    """All that these ranks can tell. message_bytes: None takes the usual size, less on small memory. Collective.

    Raises Unmeasurable, on all ranks, where the buffers don't fit.
    """
    comm = ranks.comm
    assert comm is not None
    nodes = nodes_of(ranks.everyone([zlib.crc32(socket.gethostname().encode())]).flatten().tolist())
    devices = len(nodes[0])
    buffers = _allocated(ranks, device, message_bytes)
    message_bytes = buffers[0].numel() * DTYPE.itemsize
    small = sizes(message_bytes)
    of_all = [rank for node in nodes for rank in node]
    of_node = small if device.type == "cpu" else small[:1]
    within = [
        (
            g0,
            [group for node in nodes for group in outer_groups(node, g0, g1)],
            1,
            of_node if g1 == devices else small[:1],
        )
        for g0, g1 in pairs(devices)
    ]
    alone = [(devices, [tuple(node[0] for node in nodes[:count])], count, small) for count in sorted({2, len(nodes)})]
    shared = [
        (g0, outer_groups(of_all, g0, len(of_all) // g0), len(nodes), small[:1])
        for g0 in range(1, devices + 1)
        if devices % g0 == 0 and devices > 1
    ]
    if len(nodes) == 1:
        alone, shared = [], []
    plan = {"within": within, "alone": alone, "shared": shared}
    turns.share(len(NAMES) * sum(len(lengths) for rows in plan.values() for *_, lengths in rows))
    found: dict[str, tuple[Rings, ...]] = {}
    for where, rows in plan.items():
        found[where] = tuple(
            _measured(Party(groups, comm, buffers), g0, len(groups), spanned, lengths, turns)
            for g0, groups, spanned, lengths in rows
        )
    return Links(
        nodes=len(nodes), devices_per_node=devices, message_bytes=message_bytes, fitted=_fitted(found["alone"]), **found
    )


def sizes(largest: int) -> list[int]:
    """Of messages in bytes, the largest first.

    >>> sizes(1 << 18)
    [262144, 32768, 4096]
    """
    found = [largest]
    while found[-1] // EACH_TIME >= SMALLEST:
        found.append(found[-1] // EACH_TIME)
    return found


def run_collectives(
    launch: Launch, *, device: str, message_bytes: float | None, repeats: int, time_budget_s: float,
    timeouts: Timeouts = Timeouts(), labels: dict[str, str], out: Path,
) -> Result:  # fmt: skip
    """Measure and, on rank 0, write result.json; one that is "failed" says why. Raises UsageError."""
    if launch.world_size < 2:
        raise UsageError(
            "A collective takes two ranks at least: start several, such as by torchrun --nproc-per-node 2."
        )
    if message_bytes is not None and not SMALLEST <= message_bytes < LARGEST:
        raise UsageError(f"A message has {SMALLEST} bytes or more, but {message_bytes:g} were given.")
    if repeats < FEWEST:
        raise UsageError(f"A collective is repeated {FEWEST} times or more, but {repeats} was given.")
    check_budget(time_budget_s)
    target = choose_device(device, launch.local_rank)
    config = {"bytes": message_bytes, "repeats": repeats, "time_budget_s": time_budget_s}
    begun = Begun("collectives", launch, target, config=config, dtype="fp32", labels=labels, out=out)
    heard = listen(backend_of(target), os.environ)
    found, everyone, reason = None, None, None
    try:
        with at_once(launch, target, timeouts, begun) as ranks:
            try:
                turns = Turns(ranks, repeats, time_budget_s)
                found = links(ranks, target, None if message_bytes is None else int(message_bytes), turns)
            except Unmeasurable as error:
                reason = f"No bandwidth could be measured: {error}."
            assert ranks.comm is not None
            everyone = everyones(ranks.comm, heard)
    except LOST as error:
        reason, found = f"No bandwidth could be measured: it failed with: {first_line(error)}.", None
    return begun.end(reason, everyone, links=found, transport=everyone.transport if everyone else None)


def _allocated(ranks: AtOnce, device: torch.device, message_bytes: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """A buffer for a whole message, and one for a rank's piece; of the same size on all ranks."""
    free = free_bytes(device) // (ranks.on_machine if device.type == "cpu" else 1)
    if message_bytes is None:
        message_bytes = max(SMALLEST, min(USUAL_BYTES[device.type], free // 2 // BUFFERS))
        message_bytes = int(ranks.everyone([message_bytes]).min())
    why = None
    if BUFFERS * message_bytes > free:
        why = (
            f"messages of {message_bytes / 1e9:.3g} GB take {BUFFERS * message_bytes / 1e9:.3g} GB of memory and "
            f"{free / 1e9:.3g} GB are free"
        )
    if why := ranks.obstacle(why):
        raise Unmeasurable(why)
    elements, found = message_bytes // DTYPE.itemsize, []
    try:
        for length in (elements, elements // 2):
            found.append(torch.empty(length, dtype=DTYPE, device=device).zero_())  # sums of zeros never grow
    except RuntimeError as error:
        why = first_line(error)
    if why := ranks.obstacle(why):
        raise Unmeasurable(f"the buffers can't be allocated: {why}")
    whole, piece = found
    return whole, piece


def _measured(party: Party, apart: int, groups: int, nodes: int, lengths: Sequence[int], turns: Turns) -> Rings:
    """All collectives in groups that communicate at once, with messages of each length."""
    times = tuple(_timed(party, name, length, turns, groups * party.size) for length in lengths for name in NAMES)
    together = times[: len(NAMES)]  # of the largest message
    rate = ring_bandwidth(sum(one.moved_bytes for one in together), sum(one.median_s for one in together))
    rings = Rings(apart=apart, ranks=party.size, groups=groups, nodes=nodes, times=times, bytes_per_s=rate)
    log.info("%d rings of %d ranks, %d apart, over %d nodes: %.4g GB/s", groups, party.size, apart, nodes, rate / 1e9)
    return rings


def _timed(party: Party, name: Name, length: int, turns: Turns, ranks: int) -> CollectiveTime:
    """ranks: that communicate."""
    kind = Kind(name)
    elements = max(1, length // DTYPE.itemsize // party.size) * party.size
    input_bytes = elements * DTYPE.itemsize // (party.size if kind is Kind.ALL_GATHER else 1)
    moved = moved_bytes(kind, input_bytes, party.size)
    found: Samples = turns.take(lambda calls: party.seconds(kind, elements, calls))
    return CollectiveTime(
        kind=name,
        input_bytes=input_bytes,
        moved_bytes=moved,
        samples=found.count,
        calls=found.calls,
        median_s=found.median_s,
        low_s=found.low_s,
        high_s=found.high_s,
        bytes_per_s=ring_bandwidth(moved, found.median_s),
        processor_s=found.processor_s / ranks if party.on_processors else None,
    )


def _fitted(alone: Sequence[Rings]) -> FittedLink | None:
    times = [
        Timed(Kind(one.kind), one.input_bytes, rings.ranks, one.median_s) for rings in alone for one in rings.times
    ]
    if not times:
        return None
    link = fit_link(times)
    return FittedLink(bytes_per_s=link.bytes_per_s, step_s=link.step_s, half_bytes=link.half_bytes)
