"""Memory that both sides of a comparison need of a device, and whether a machine has room for them.

No torch in it, but to ask a GPU here. A comparison that doesn't fit is no job but a row with the sentence.

Ours is Footprint's. A peer's is put together of the same parts: what the network's blocks keep of a token (Kept), the
activation of a rank's rows, and the states of a parameter. What differs from peer to peer is its `memory` in known/
(Habits). Sources: ZeRO (Rajbhandari et al. 2020, 3 and 5) for what data ranks divide in its stages; Korthikanti et al.
2022, 4, for activations by tensor ranks with and without sequence parallelism; Narayanan et al. 2021, 2.2, for
micro-batches in flight of a pipeline; for the others their own code, as external/ calls it. Against what PyTorch's
allocator handed out on a processor it was within 25 % for those that tests/engine/test_known_peers.py asks. Of
DeepSpeed, what more layers add to a process's resident memory on a processor is within 25 % (test_deepspeed_shards.py),
without its buckets; other external ones have never been measured. No GPU has confirmed any of it.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod
from multiprocessing import get_context
from statistics import fmean
from typing import NamedTuple

from engine.comm.launch import choose_device
from engine.footprint.memory import Footprint, usable
from engine.grid import TENSOR, Grid
from engine.models.architecture import Architecture
from engine.models.operations import Kept
from engine.optimizer_state import ADAMW
from engine.peers.comparison import Case, Comparison, Habits, Unavailable
from engine.peers.layout import Layout
from engine.peers.registry import choose_settings, has_module
from engine.training_record import BYTES, HALF

UNFIT = "does not fit"
"""The sentence of each comparison that is skipped for want of memory has these words."""
MOMENTS = len(ADAMW.names)
DIVIDED = ("nothing", "optimizer", "gradients", "weights")
"""Values of Habits.data: each divides what those before it do."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a machine, in bytes; None where not known, which is taken to hold everything."""

    device: str
    """cpu or cuda"""
    device_memory: float | None = None
    """Bytes of one device."""
    node_memory: float | None = None
    """Bytes of a node's processors."""

    def fits(self, needed: float) -> bool:
        """Say whether a device has room for that many bytes."""
        return needed <= usable(self.device_memory)

    def lack(self, who: str, needed: float, on_node: float = 0.0) -> str | None:
        """Say in a sentence why there is no room for the needed bytes of a device, or for those on its node; None where
        there is.
        """
        clause = f"{who} {UNFIT}: its ranks make whole networks first, which needs"
        return _unfit(f"{who} {UNFIT}: needs", needed, self.device_memory, "device") or _unfit(
            clause, on_node, self.node_memory, "node"
        )


def _unfit(clause: str, needed: float, memory: float | None, of: str) -> str | None:
    if memory is None or needed <= (room := usable(memory)):
        return None
    return f"{clause} {needed / 1e9:.3g} of {room / 1e9:.3g} GB that a plan counts on of a {of}'s {memory / 1e9:.3g}."


class SideBytes(NamedTuple):
    """Bytes of a device that a rank of each side needs."""

    ours: float
    peer: float


def side_bytes(comparison: Comparison, case: Case, device: str) -> SideBytes:
    """Estimate what a comparison needs of devices of a kind, cpu or cuda."""
    return SideBytes(ours(case, comparison.grid, device), peer(comparison, case, device))


def ours(case: Case, grid: Grid, device: str) -> float:
    """Estimate the bytes of a rank of the engine."""
    return Footprint(case, device).on(grid).total


def peer(comparison: Comparison, case: Case, device: str) -> float:
    """Estimate the bytes of a rank of the peer: the most of training and of what it makes first."""
    habits = comparison.memory
    if habits is None:
        return ours(case, comparison.grid, device)

    def is_set(setting: tuple[str, str] | None) -> bool:
        if setting is None or comparison.library is None:
            return False
        section, name = setting
        installed = partial(has_module, library=comparison.library)
        return bool(choose_settings(comparison.library, section, device, installed)[name])

    if is_set(habits.divides):
        habits = replace(habits, data="optimizer")
    habits = replace(habits, scores=habits.scores and not is_set(habits.fuses))
    ranks = _count_ranks(comparison, case)
    built = 0.0
    if habits.built == "device":  # the whole network in the master format, and the shares that it is cut into
        cut = ranks.tensor * ranks.pipeline * (ranks.shards if habits.data == "weights" else 1)
        built = case.model.parameters * case.master * (1 + (1 / cut if cut > 1 else 0))
    return max(built, _training_bytes(habits, ranks, case))


class _Ranks(NamedTuple):
    """Numbers of ranks of a peer that split the network each way."""

    tensor: int
    pipeline: int
    shards: int
    """Data ranks that divide states."""
    at_once: float
    """Sequences of a micro-batch."""
    parts: float
    """Micro-batches."""


def _count_ranks(comparison: Comparison, case: Case) -> _Ranks:
    layout = comparison.layout if comparison.layout is not None else comparison.grid
    if isinstance(layout, Layout):
        parts = layout.for_batch(case.peer_batch).micro_batches
        return _Ranks(layout.tensor, layout.pipeline, layout.data, case.batch.sequences / layout.data / parts, parts)
    at_once = case.peer_batch.at_once(layout)
    return _Ranks(layout[TENSOR], 1, layout.shards, at_once, case.peer_batch.per_rank(layout) / at_once)


def _training_bytes(habits: Habits, ranks: _Ranks, case: Case) -> float:
    """Add up the fullest moment: states, weights gathered, activations of what is in flight, logits."""
    model, master = case.model, case.master
    mine = model.parameters / (ranks.tensor * ranks.pipeline)
    shards_weights = habits.data == "weights" and ranks.shards > 1
    gradient = case.compute if habits.gradients == "weights" else master
    weight, optimizer = master, (MOMENTS + (habits.masters == "always")) * master
    half = case.precision in HALF
    if half and habits.autocast and case.autocast:
        weight += case.compute  # autocast's copy
    elif half:
        copied = habits.copies or (habits.data == "weights" and not shards_weights)  # else all of it is gathered
        weight, optimizer = case.compute * copied, (1 + MOMENTS) * master
    divided = DIVIDED.index(habits.data)
    over_weights, over_gradients, over_optimizer = (ranks.shards if divided >= place else 1 for place in (3, 2, 1))
    states = mine * (weight / over_weights + gradient / over_gradients + optimizer / over_optimizer)
    gathered = _gathered_bytes(habits, ranks, case, mine) if shards_weights else 0.0
    # By how much gradients, of two bytes until the backward ends, are then wider in the master's format.
    pure = half and habits.autocast and not case.autocast
    widened = mine * (master - case.compute) / over_gradients if pure else 0.0
    flattened = min(mine / over_optimizer, habits.flattens_at_most)
    # Beside the buckets, a copy of gradients that are summed whole before they are reduced.
    reduced = habits.buckets * habits.bucket * case.compute + (0 if shards_weights else flattened * gradient)
    backward = gathered + _activation_bytes(habits, ranks, case)
    if habits.reduces == "in the backward":
        backward += reduced
    # The copy, and in the master's format another; weights that are released by their number are gone by then.
    step = widened + flattened * (gradient + (master if gradient != master else 0))
    step += 0.0 if habits.live_at_most else gathered
    return states - widened + max(backward, reduced, step)


def _gathered_bytes(habits: Habits, ranks: _Ranks, case: Case, mine: float) -> float:
    """Count weights of which a rank has a shard, and that are gathered, with gradients that are not yet divided."""
    model = case.model
    if habits.live_at_most:
        adjacent = 2 * max(prod(placed.shape) for placed in model.placements().values()) / ranks.tensor
        live, fetched = max(habits.live_at_most, adjacent), habits.fetches_at_most
        return sum(min(mine, elements) for elements in (live, fetched, adjacent)) * case.compute
    gathered = max(2 * _largest_block(model), model.outputs * model.hidden) / ranks.tensor
    keeps = {
        "always": True,
        "never": False,
        "in a pipeline": ranks.pipeline > 1,
        "unless recomputing": not case.checkpoint_activations,
    }[habits.keeps]
    sums = keeps and habits.sums and ranks.parts > 1
    # Weights, and gradients on their way or until the last micro-batch.
    return (mine if keeps else gathered) * case.compute + (mine if sums else gathered) * case.bytes_of_sums


def _largest_block(model: Architecture) -> float:
    """Count the parameters of a network's largest block; where all are alike the ends' are shared out among them."""
    network = model.network()
    if network.alike:
        return (model.parameters - model.outputs * model.hidden) / model.layers
    return max(sum(prod(placed.shape) for placed in block.placements(network.mode)) for block in network.blocks)


def _activation_bytes(habits: Habits, ranks: _Ranks, case: Case) -> float:
    """Add up the micro-batches in flight, with the fullest moment of one: blocks recomputed, or the loss."""
    model, compute, master = case.model, case.compute, case.master
    network, samples = model.network(), ranks.at_once
    wide = master if habits.autocast and case.autocast else compute
    of_stream = samples * wide / (ranks.tensor if habits.stream else 1)
    streams = [of_stream * prod(boundary[0].shape) for boundary in network.boundaries[:-1]]
    scores = samples * model.sequence**2 * model.heads / ranks.tensor * (2 * compute + master) if habits.scores else 0.0

    def of_block(kept: Kept) -> float:
        split = kept.inner / ranks.tensor + kept.stream / (ranks.tensor if habits.gathers else 1)
        return samples * compute * split + of_stream * kept.streams * model.hidden + scores

    sections = {id(section): section for section, _ in network.blocks}
    each = {key: of_block(section.kept(model.sequence)) for key, section in sections.items()}
    blocks = [each[id(section)] for section, _ in network.blocks]
    layers = model.layers / ranks.pipeline
    together = case.checkpoint_group(Grid())
    kept = ceil(layers / together) * fmean(streams) if together else layers * fmean(blocks)
    flights = ranks.parts if habits.flights == "all" else min(ranks.pipeline, ranks.parts)
    again = max(blocks) * (layers if habits.again == "stage" else together) if together else 0.0
    tokens = samples * (network.sections[-1].tokens or model.sequence)
    logits = tokens * model.outputs / (ranks.tensor if habits.vocabulary else 1)
    loss = logits * (compute + 2 * master if compute != master else 3 * master)  # those, in fp32, their gradient
    return flights * kept + max(again + max(streams), loss)


def host_bytes(comparison: Comparison, case: Case, ranks_of_a_node: int) -> float:
    """Estimate a node's memory while its ranks make the network there, each whole and once more renamed."""
    if comparison.memory is None or comparison.memory.built != "host":
        return 0.0
    return 2 * BYTES["fp32"] * case.model.parameters * ranks_of_a_node


def choose_apart(comparison: Comparison, case: Case, room: Room) -> Case:
    """Return the case with apart decided: what is asked for, else both sides at once where a device has room for both.

    Raises Unavailable where a side doesn't fit by itself, unless the case asks for it despite that.
    """
    ours, peer = side_bytes(comparison, case, room.device)
    ranks_of_a_node = min(case.devices_per_node or comparison.grid.size, comparison.grid.size)
    on_node = host_bytes(comparison, case, ranks_of_a_node)
    reason = room.lack("the engine", ours) or room.lack(comparison.name, peer, on_node)
    if reason and not case.despite_estimate:
        raise Unavailable(reason)
    return case if case.apart is not None else replace(case, apart=not room.fits(ours + peer))


def room_here(case: Case, device: str) -> Room:
    """Return the room that the case says, or the first GPU's where it says nothing. Raises UsageError without one."""
    memory = case.device_memory
    if memory is None and device == "cuda":
        choose_device(device, 0)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # so that this process takes nothing of it
            memory = other.submit(bytes_of_gpu, 0).result()
    return Room(device, memory, case.node_memory)


def bytes_of_gpu(index: int) -> float:
    import torch

    return float(torch.cuda.get_device_properties(index).total_memory)
