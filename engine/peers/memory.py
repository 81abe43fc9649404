"""Memory that both sides of a comparison need of a device, and whether a machine has room for them.

No torch in it, but to ask a GPU here. A comparison that doesn't fit is no job but a row with the sentence.

Ours is Footprint's. A peer's is put together of the same parts: what the network's blocks keep of a token (Kept), the
activation of a rank's rows, and the states of a parameter. What differs from peer to peer is its row of MEMORY in
known/: which ranks divide what, and what it has besides. Sources: ZeRO (Rajbhandari et al. 2020, 3 and 5) for what data
ranks divide in its stages; Korthikanti et al. 2022, 4, for activations by tensor ranks with and without sequence
parallelism; Narayanan et al. 2021, 2.2, for micro-batches in flight of a pipeline; for the others their own code, as
external/ calls it. Against what PyTorch's allocator handed out on a processor it was within 25 % for those that
tests/engine/test_peer_memory.py asks; external ones have never been measured. No GPU has confirmed any of it.
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
from engine.grid import INNER, Grid
from engine.models.architecture import Architecture
from engine.models.operations import Kept
from engine.optimizer_state import ADAMW
from engine.peers import environments
from engine.peers.comparison import Case, Comparison, Habits, Unavailable
from engine.peers.layout import Layout
from engine.peers.registry import MEMORY
from engine.peers.settings import chosen
from engine.training_record import BYTES

UNFIT = "does not fit"
"""The sentence of each comparison that is skipped for want of memory has these words."""
MOMENTS = len(ADAMW.names)


class Ranks(NamedTuple):
    """Numbers of ranks of a peer that split the network each way.

    shards: that data ranks divide over. parts: micro-batches.
    """

    tensor: int
    pipeline: int
    shards: int
    at_once: float
    parts: float


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a machine.

    device: cpu or cuda. device_memory: bytes of one; node_memory: of a node's processors; None where not known, which
    is taken to hold everything.
    """

    device: str
    device_memory: float | None = None
    node_memory: float | None = None

    def fits(self, needed: float) -> bool:
        """Say whether a device has room for so many bytes."""
        return needed <= usable(self.device_memory)

    def lacking(self, who: str, needed: float) -> str | None:
        """Say in a sentence why it has no room; None where it has."""
        return _unfit(f"{who} {UNFIT}: needs", needed, self.device_memory, "device")

    def lacking_in_node(self, who: str, needed: float) -> str | None:
        """Say in a sentence why a node has no room for what its ranks make; None where it has."""
        clause = f"{who} {UNFIT}: its ranks make whole networks first, which needs"
        return _unfit(clause, needed, self.node_memory, "node")


def _unfit(clause: str, needed: float, memory: float | None, of: str) -> str | None:
    if memory is None or needed <= (room := usable(memory)):
        return None
    return f"{clause} {needed / 1e9:.3g} of {room / 1e9:.3g} GB that a plan counts on of a {of}'s {memory / 1e9:.3g}."


class SideBytes(NamedTuple):
    """Bytes of a device that a rank of each side needs."""

    ours: float
    peer: float


def side_bytes(comparison: Comparison, case: Case, device: str) -> SideBytes:
    """Give what a comparison needs of devices of a kind, cpu or cuda."""
    return SideBytes(ours(case, comparison.grid, device), peer(comparison, case, device))


def ours(case: Case, grid: Grid, device: str) -> float:
    """Give the bytes of a rank of the engine."""
    return Footprint(case, device).on(grid).total


def peer(comparison: Comparison, case: Case, device: str) -> float:
    """Give the bytes of a rank of the peer: the most of training and of what it makes first. A peer that MEMORY doesn't
    have is ourselves.
    """
    habits = MEMORY.get(comparison.name)
    if habits is None:
        return ours(case, comparison.grid, device)

    def is_set(setting: tuple[str, str] | None) -> bool:
        if setting is None or comparison.library is None:
            return False
        section, name = setting
        return bool(chosen(comparison.library, section, device, partial(environments.has, comparison.library))[name])

    if is_set(habits.divides):
        habits = replace(habits, data="optimizer")
    habits = replace(habits, scores=habits.scores and not is_set(habits.fuses))
    ranks = _ranks(comparison, case)
    return max(_trained(habits, ranks, case), _built(habits, ranks, case))


def _ranks(comparison: Comparison, case: Case) -> Ranks:
    """Count the ranks of its layout or its grid."""
    layout = comparison.layout if comparison.layout is not None else comparison.grid
    if isinstance(layout, Layout):
        settled = layout.for_batch(case.peer_batch)
        share = case.batch.sequences / layout.data
        return Ranks(layout.tensor, layout.pipeline, layout.data, share / settled.micro_batches, settled.micro_batches)
    at_once = case.peer_batch.at_once(layout)
    return Ranks(layout[INNER], 1, layout.shards, at_once, case.peer_batch.per_rank(layout) / at_once)


def _states(habits: Habits, case: Case) -> tuple[float, float, float]:
    """Give the bytes of a parameter: what is computed with, its gradient, and master and moments."""
    master = case.master
    if case.precision != "bf16":
        return master, master, MOMENTS * master
    if habits.autocast and case.autocast:
        return master + BYTES["bf16"], master, MOMENTS * master  # and autocast's copy
    return BYTES["bf16"] * habits.copies, master, (1 + MOMENTS) * master


def _widened(habits: Habits, case: Case) -> float:
    """Give by how many bytes of a parameter its gradient, bf16 until the backward ends, is wider in its master's."""
    pure = case.precision == "bf16" and habits.autocast and not case.autocast
    return BYTES["fp32"] - BYTES["bf16"] if pure else 0.0


def _trained(habits: Habits, ranks: Ranks, case: Case) -> float:
    """Add up the fullest moment: states, weights gathered, activations of what is in flight, logits."""
    model = case.model
    mine = model.parameters / (ranks.tensor * ranks.pipeline)
    divided = {"nothing": 0, "optimizer": 1, "gradients": 2, "weights": 3}[habits.data]
    if habits.data == "weights" and ranks.shards == 1:
        habits = replace(habits, copies=True)  # all of it is gathered
    weight, gradient, optimizer = _states(habits, case)
    over = [1 if divided < place else ranks.shards for place in (3, 2, 1)]
    held = mine * sum(bytes_ / by for bytes_, by in zip((weight, gradient, optimizer), over, strict=True))
    if habits.data == "weights" and ranks.shards > 1:
        ends = model.outputs * model.hidden
        a_block = _largest_block(model)
        some, every = max(2 * a_block, ends) / ranks.tensor, mine
        keeps = habits.keeps == "always" or (habits.keeps == "in a pipeline" and ranks.pipeline > 1)
        keeps = keeps or (habits.keeps == "unless recomputing" and not case.checkpoint_activations)
        held += (every if keeps else some) * case.compute  # weights, and gradients on their way or until the last
        held += (every if keeps and habits.sums and ranks.parts > 1 else some) * case.compute
    widened = mine * _widened(habits, case) / over[1]
    return held - widened + max(_activations(habits, ranks, case), widened)


def _largest_block(model: Architecture) -> float:
    """Count the parameters of a network's largest block; where all are alike the ends' are shared out among them."""
    network = model.network()
    if network.alike:
        return (model.parameters - model.outputs * model.hidden) / model.layers
    return max(sum(prod(placed.shape) for placed in block.placements) for block in network.blocks)


def _activations(habits: Habits, ranks: Ranks, case: Case) -> float:
    """Add up the micro-batches in flight, with the fullest moment of one: blocks recomputed, or the loss."""
    model, compute, master = case.model, case.compute, case.master
    network, samples = model.network(), ranks.at_once
    head_tokens = samples * (network.sections[-1].tokens or model.sequence)
    wide = master if habits.autocast and case.autocast else compute
    of_stream = samples * wide / (ranks.tensor if habits.stream else 1)
    streams = [of_stream * prod(boundary[0].shape) for boundary in network.boundaries[:-1]]
    scores = samples * model.sequence**2 * model.heads / ranks.tensor * (2 * compute + master) if habits.scores else 0.0

    def of_block(kept: Kept) -> float:
        split = kept.over_inner / ranks.tensor + kept.over_stream / (ranks.tensor if habits.gathers else 1)
        return samples * compute * split + of_stream * kept.streams * model.hidden + scores

    sections = {id(section): section for section, _ in network.blocks}
    each = {key: of_block(section.kept(model.sequence)) for key, section in sections.items()}
    blocks = [each[id(section)] for section, _ in network.blocks]
    layers = model.layers / ranks.pipeline
    together = case.checkpoint_group(Grid())
    kept = ceil(layers / together) * fmean(streams) if together else layers * fmean(blocks)
    flights = ranks.parts if habits.flights == "all" else min(ranks.pipeline, ranks.parts)
    again = max(blocks) * (layers if habits.again == "stage" else together) if together else 0.0
    logits = head_tokens * model.outputs / (ranks.tensor if habits.vocabulary else 1)
    loss = logits * (compute + 2 * master if compute != master else 3 * master)  # those, in fp32, their gradient
    return flights * kept + max(again + max(streams), loss)


def _built(habits: Habits, ranks: Ranks, case: Case) -> float:
    """Count what is on the device before anything is trained: the whole network in the master format, where it is made
    there, and the shares that it is cut into.
    """
    if habits.built != "device":
        return 0.0
    cut = ranks.tensor * ranks.pipeline * (ranks.shards if habits.data == "weights" else 1)
    return case.model.parameters * case.master * (1 + (1 / cut if cut > 1 else 0))


def host(comparison: Comparison, case: Case, ranks_of_a_node: int) -> float:
    """Give the bytes of a node's memory while its ranks make the network there, each whole and once more renamed."""
    habits = MEMORY.get(comparison.name)
    if habits is None or habits.built != "host":
        return 0.0
    return 2 * BYTES["fp32"] * case.model.parameters * ranks_of_a_node


def choose_apart(comparison: Comparison, case: Case, room: Room) -> Case:
    """Return the case with apart decided: what is asked for, else both sides at once where a device has room for both.

    Raises Unavailable where a side doesn't fit by itself.
    """
    ours, peer = side_bytes(comparison, case, room.device)
    ranks_of_a_node = min(case.devices_per_node or comparison.grid.size, comparison.grid.size)
    lacking = room.lacking("the engine", ours) or room.lacking(comparison.name, peer)
    if reason := lacking or room.lacking_in_node(comparison.name, host(comparison, case, ranks_of_a_node)):
        raise Unavailable(reason)
    return case if case.apart is not None else replace(case, apart=not room.fits(ours + peer))


def room_here(case: Case, device: str) -> Room:
    """Take the room that the case says, or the first GPU's where it says nothing. Raises UsageError without one."""
    memory = case.device_memory
    if memory is None and device == "cuda":
        choose_device(device, 0)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # so that this process takes nothing of it
            memory = other.submit(bytes_of_gpu, 0).result()
    return Room(device, memory, case.node_memory)


def bytes_of_gpu(index: int) -> float:
    import torch

    return float(torch.cuda.get_device_properties(index).total_memory)
