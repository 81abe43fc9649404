"""Both sides of a comparison need so much of a device, by the formulas of engine/footprint. No torch in it.

Ours is Footprint's. A peer's is put together of the same parts: what the network's blocks keep of a token (Kept), the
activation of a rank's rows, and the states of a parameter. What differs from peer to peer is data: MEMORY below says of
each which ranks divide what, and what it has besides. Sources: ZeRO (Rajbhandari et al. 2020, 3 and 5) for what data
ranks divide in its stages; Korthikanti et al. 2022, 4, for activations by tensor ranks with and without sequence
parallelism; Narayanan et al. 2021, 2.2, for micro-batches in flight of a pipeline; for the others their own code, as
external/ calls it. Against what PyTorch's allocator handed out on a processor it was within 25 % for those that
tests/engine/test_peer_memory.py asks; external ones have never been measured. No GPU has confirmed any of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod
from statistics import fmean
from types import MappingProxyType
from typing import Literal, NamedTuple

from engine.footprint.memory import Footprint, usable
from engine.grid import INNER, Grid
from engine.models.architecture import Architecture
from engine.models.operations import Kept
from engine.optimizer_state import ADAMW
from engine.peers import environments
from engine.peers.comparison import Case, Comparison
from engine.peers.layout import Layout
from engine.peers.settings import chosen
from engine.training_record import BYTES

Divided = Literal["nothing", "optimizer", "gradients", "weights"]
Keeps = Literal["never", "always", "unless recomputing", "in a pipeline"]
Built = Literal["device", "host", "parts"]
UNFIT = "does not fit"
"""The sentence of each comparison that is skipped for want of memory has these words."""
MOMENTS = len(ADAMW.names)
DISTRIBUTED_OPTIMIZER = ("megatron-core", "OptimizerConfig")
"""There known/ says on which devices its data ranks divide the optimizer's states."""
FUSED_ATTENTION = {
    "megatron-core": ("layers", "TEDotProductAttention"),
    "colossalai": ("HybridParallelPlugin", "enable_flash_attention"),
}
"""There it says, by library, on which devices attention is one kernel, which keeps no scores."""


@dataclass(frozen=True, slots=True)
class Habits:
    """A peer uses memory in these ways.

    data: the most that its data ranks divide: nothing (DDP), optimizer states (ZeRO-1), gradients (ZeRO-2), or weights
    (ZeRO-3, FSDP); each takes in what comes before it. keeps: when gathered weights of all blocks are there at once;
    sums: then gradients, too, whole until the last micro-batch. stream: whether tensor ranks split the residual stream
    by positions. gathers: whether they then gather a product's input again in the backward, instead of keeping it
    whole. vocabulary: whether they split the logits; else each has all of them. scores: whether attention keeps its
    scores, where no setting makes it one kernel. autocast: whether bf16 is autocast's where the case asks for that,
    with weights, residual stream and gradients in fp32 and a cast of each weight kept; else weights are bf16 beside
    fp32 masters, of which a rank then copies its own share, too, or only what it gathers. flights: micro-batches in
    flight of a pipeline, "all" of them or one a "stage". again: what recomputation holds at once, a "block", or a
    "stage" as was seen of PyTorch's pipelines. built: where each rank makes the whole network first, or that it makes
    its "parts" only.
    """

    data: Divided = "nothing"
    keeps: Keeps = "never"
    stream: bool = False
    gathers: bool = False
    vocabulary: bool = True
    scores: bool = False
    autocast: bool = True
    copies: bool = True
    sums: bool = True
    flights: Literal["all", "stage"] = "stage"
    again: Literal["block", "stage"] = "block"
    built: Built = "device"


_FULL = Habits(vocabulary=False)
_PIPELINE = replace(_FULL, again="stage")
_SHARDED = Habits(data="weights", autocast=False, copies=False, built="parts")
_MEGATRON = Habits(scores=True, autocast=False, built="host")
_DEEPSPEED = Habits(vocabulary=False, autocast=False)
_TITAN = Habits(data="weights", keeps="in a pipeline", autocast=False, copies=False, built="host")
MEMORY: Mapping[str, Habits] = MappingProxyType(
    {
        "plain": _FULL,
        "compile": _FULL,
        "channels-last": _FULL,
        "transformers": _FULL,
        "ddp": _FULL,
        "fsdp2": replace(_SHARDED, keeps="always"),
        "fsdp2-reshard": _SHARDED,
        "hsdp": replace(_SHARDED, keeps="unless recomputing", sums=False),
        "tensor-parallel": Habits(),
        "tensor-parallel-sp": Habits(stream=True),
        "pipeline-gpipe": replace(_PIPELINE, flights="all"),
        "pipeline-1f1b": _PIPELINE,
        "pipeline-interleaved": _PIPELINE,
        "pipeline-zero-bubble": _PIPELINE,
        "megatron-core": _MEGATRON,
        "megatron-core-sp": replace(_MEGATRON, stream=True, gathers=True),
        "deepspeed-zero1": replace(_DEEPSPEED, data="optimizer"),
        "deepspeed-zero2": replace(_DEEPSPEED, data="gradients"),
        "deepspeed-zero3": replace(_DEEPSPEED, data="weights"),
        "deepspeed-pipeline": replace(_DEEPSPEED, data="optimizer"),
        "deepspeed-3d": replace(_DEEPSPEED, data="optimizer"),
        "torchtitan": _TITAN,
        "torchtitan-sp": replace(_TITAN, stream=True),
        "transformers-tp": replace(_FULL, data="weights"),
        "colossalai": Habits(scores=True, autocast=False, built="host"),
        "axonn": replace(_FULL, built="host"),
        "axonn-depth": replace(_FULL, data="weights", keeps="always", built="host"),
        "litgpt": replace(_FULL, built="host"),
    }
)


class Ranks(NamedTuple):
    """So many ranks of a peer split the network each way. shards: that data ranks divide over. parts: micro-batches."""

    tensor: int
    pipeline: int
    shards: int
    at_once: float
    parts: float


@dataclass(frozen=True, slots=True)
class Room:
    """device: cpu or cuda. device_memory: bytes of one; node_memory: of a node's processors; None where not known,
    which is taken to hold everything.
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
    """These are the bytes of a device that a rank of each side needs."""

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
    library, installed = comparison.library, partial(environments.has, comparison.library)
    if library == "megatron-core" and chosen(*DISTRIBUTED_OPTIMIZER, device).get("use_distributed_optimizer"):
        habits = replace(habits, data="optimizer")
    if library in FUSED_ATTENTION:
        section, name = FUSED_ATTENTION[library]
        habits = replace(habits, scores=habits.scores and not chosen(library, section, device, installed)[name])
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
