"""The same serial model under other people's parallelism, to be timed against the engine's grid in the same run.

A peer is one short file with a class that satisfies peer.Peer, and one line in CONTESTS. No torch in this one.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from cyclopts import Parameter

from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.overlap.flags import ALL, Overlap
from engine.training.config import OptimConfig


@dataclass(frozen=True, slots=True)
class Contest:
    """One peer against one grid of ours. built_by: "module:class" of the peer, loaded by the ranks only.

    target: what the ratio of medians, our step time by the peer's, is to be at most; None where it is only told.
    axes: those that may be larger than 1, as the peer has nothing like the others. ties: whether it keeps one table
    for token embedding and head where the network has one.
    """

    name: str
    peer: str
    grid: Grid
    target: float | None
    built_by: str
    axes: tuple[str, ...]
    ties: bool = True

    def check(self, model: Architecture) -> None:
        """Raises UsageError if the peer can't train that network as the engine does."""
        if getattr(model, "dropout", 0):
            raise UsageError("Peers draw other dropout masks than the engine: compare without --dropout.")
        if model.ties and not self.ties:
            raise UsageError(f"{self.name} makes two tables of a tied one: compare a network that isn't tied.")

    def on(self, grid: Grid) -> "Contest":
        """The same contest on another grid. Raises UsageError if the peer can't do what that grid does."""
        if beyond := [axis.value for axis in Axis if grid[axis] > 1 and axis.value not in self.axes]:
            allowed = f"only {' and '.join(self.axes)}" if self.axes else "no axis"
            raise UsageError(
                f"{self.name} is no match for grid {grid}: {allowed} may be larger than 1, but {' and '.join(beyond)} "
                f"{'are' if len(beyond) > 1 else 'is'}."
            )
        return replace(self, grid=grid)


CONTESTS = {
    contest.name: contest
    for contest in (
        Contest("plain", "plain PyTorch", Grid(), 1.02, "engine.peers.plain:Plain", ()),
        Contest("ddp", "DistributedDataParallel", Grid(data=2), 1.0, "engine.peers.ddp:DDP", ("data",)),
        Contest("fsdp2", "fully_shard, keeps gathered weights", Grid(z=2), 1.0, "engine.peers.fsdp2:FSDP2", ("z",)),
        Contest(
            "fsdp2-reshard",
            "fully_shard, gathers twice",
            Grid(z=2),
            None,
            "engine.peers.fsdp2:FSDP2Reshard",
            ("z",),
        ),
        Contest("hsdp", "fully_shard, hybrid", Grid(z=2, data=2), 1.0, "engine.peers.hsdp:HSDP", ("z", "data")),
        Contest(
            "tensor-parallel",
            "DTensor tensor parallelism",
            Grid(x=2),
            1.0,
            "engine.peers.tensor_parallel:TensorParallel",
            ("x",),
            ties=False,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How often both sides are timed.

    A round is `steps` steps of one side, then of the other. A job is a set of processes with so many rounds. There are
    several jobs, one after the other: where a process happens to place its memory makes one side faster by 1 % for as
    long as it lives.
    """

    jobs: int = 3
    """fresh sets of processes"""
    rounds: int = 6
    """of each job"""
    steps: Annotated[int, Parameter(name="--steps-per-round")] = 2
    """of each side"""
    threads: int = 1
    """of each rank"""
    timeout_s: Annotated[float, Parameter(name="--timeout", metavar="SECONDS")] = 1800.0
    """for one job"""


@dataclass(frozen=True, slots=True)
class Case(Sampling):
    """What both sides train, in fp32, and how often. sequences: of the global batch. overlap: the engine's.

    warmup: untimed steps of each side, whose losses are compared.
    """

    model: Architecture
    sequences: int
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = 0
    checkpoint_activations: bool = False
    overlap: Overlap = ALL
    warmup: int = 3


@dataclass(frozen=True, slots=True)
class Side:
    """What one rank measured of one side. losses: of the warm-up steps.

    wall_s, cpu_s: elapsed and processor seconds of each timed step, by round. Processor seconds are those of the whole
    process, threads of the collectives included, without waiting; other work on the machine disturbs them less.
    """

    losses: tuple[float, ...]
    wall_s: tuple[tuple[float, ...], ...]
    cpu_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Both sides of a contest on one rank."""

    ours: Side
    peer: Side
