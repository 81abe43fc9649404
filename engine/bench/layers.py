"""Count what two linear layers move and hold in a step of a tensor mode (colossal-ai, Table 1, Fig. 5 and 8).

Elements are those that the funnel was asked to send, bytes the allocator's, each beside a closed form. With as many
ranks as the grid has, each works, and elements are added up. One rank alone stands for any of them: it computes, holds
and asks to send what it would in the job, but nothing is sent, and its numbers have no meaning. On processors bytes are
always those of such a rank, as torch doesn't see what the threads of gloo release.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.bench.frame import Benchmark, Table, parse_doubling
from engine.bench.world import Unmeasurable, World
from engine.comm.backend import nothing
from engine.comm.collective import ROOTED, Kind, Lane
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.grid import SPLITTING_FEATURES, Axis, Grid
from engine.layers.local import Local
from engine.layers.matmul import PLAIN
from engine.layers.registry import layer_of_grid
from engine.measure.memory import Allocated
from engine.measure.pending import Pending
from engine.measure.recorder import Recorder
from engine.models.layer_pair import LayerPair
from engine.models.mode_choice import ModeName, check_mode, choose_mode
from engine.models.operations import Linear
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.tasks import ONE_BY_ONE, Direction
from engine.overlap.weight import ShardedWeight
from engine.precision import Precision
from engine.result.schema import Result
from engine.result.schema.bench import LayerCosts
from engine.simulator.collectives import moved_bytes
from engine.tensor_mode import TensorMode
from engine.training_record import PrecisionName

log = logging.getLogger(__name__)

LARGEST = 2**24
"""Most sequences, or features."""
ROOM = 3
"""Memory that a step is given, by what it holds once its forward is over."""


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """Read the numbers that an option gives. Raises UsageError."""
    found = parse_doubling(text, r"[1-9]\d{0,8}", int, LARGEST)
    if not found or max(found) > LARGEST:
        raise UsageError(f"{option} is LOW..HIGH, which doubles, or a comma list up to {LARGEST:,}, not {text!r}.")
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Layers(Benchmark):
    """Costs of two linear layers, of each batch with each hidden size."""

    grid: Grid
    tensor_mode: ModeName
    batches: tuple[int, ...]
    hidden: tuple[int, ...]
    sequence: int
    precision: PrecisionName

    kind = "layers"
    unmeasured = "The layers could not be measured"
    lost = "The layers failed"
    between_ranks = True

    @property
    def dtype(self) -> PrecisionName:  # type: ignore[override]
        return self.precision

    @property
    def config(self) -> dict[str, Any]:
        return {
            "grid": str(self.grid),
            "tensor_mode": self.tensor_mode,
            "sequence": self.sequence,
            "precision": self.precision,
        }

    @property
    def pairs(self) -> list[LayerPair]:
        return [LayerPair(batch, self.sequence, hidden, hidden) for batch in self.batches for hidden in self.hidden]

    def mode(self, pair: LayerPair) -> TensorMode:
        """Return the mode in which the layers lie on the grid."""
        return choose_mode(self.tensor_mode, pair.network, self.grid, pair.batch // self.grid.batch_split)

    def check(self, launch: Launch, device: torch.device) -> None:
        if launch.world_size not in (1, self.grid.size):
            raise UsageError(
                f"Grid {self.grid} has {self.grid.size} ranks, but {launch.world_size} were started: start as many, or "
                "one, which then stands for each."
            )
        if self.sequence < 1:
            raise UsageError(f"--seq is at least 1, but {self.sequence} was given.")
        parts = self.grid.batch_split
        for pair in self.pairs:
            if pair.batch % parts:
                raise UsageError(
                    f"On grid {self.grid} a batch is split into {parts} parts, which don't divide {pair.batch}: give "
                    "--batch multiples of that."
                )
            check_mode(self.tensor_mode, pair.network, self.grid, pair.batch // parts)
            for axis in SPLITTING_FEATURES:
                if pair.hidden % self.grid[axis]:
                    raise UsageError(
                        f"Grid {self.grid} splits features over {self.grid[axis]} ranks of {axis}, which don't divide "
                        f"{pair.hidden}: give --hidden multiples of that."
                    )

    def lay_out(self, ranks: int) -> Grid:
        return self.grid if ranks == self.grid.size else Grid.replicated(ranks)

    def measure(self, world: World, found: dict[str, Any]) -> None:
        found |= {"grid": str(self.grid), "layers": ()}
        for pair in self.pairs:
            costs = self.costs(world, pair)
            found["layers"] = (*found["layers"], costs)
            log.info("%s", " ".join(_row(costs)))

    def costs(self, world: World, pair: LayerPair) -> LayerCosts:
        """Measure a shape. Collective. Raises Unmeasurable where a rank has no room for it."""
        mode, each = self.mode(pair), Precision.parse(self.precision).compute.itemsize
        held = pair.held_elements(mode, self.grid) * each
        if why := world.obstacle(world.lack(ROOM * held)):
            raise Unmeasurable(f"a batch of {pair.batch} of {pair.hidden} features needs {why}")
        alone = self.alone(world.device)
        everyone = world.comm if world.size == self.grid.size else alone
        watched = everyone if world.device.type == "cuda" else alone
        with Allocated(world.device) as forward:
            layers = BothLayers(watched, mode, pair, self.precision)
            output = layers.forward()
        del layers, output
        with Allocated(world.device) as step:
            layers = BothLayers(watched, mode, pair, self.precision)
            layers.backward(layers.forward())
        if watched is not everyone:
            layers = BothLayers(everyone, mode, pair, self.precision)
            layers.backward(layers.forward())
        every = world.gather_rows([layers.sent_bytes(), forward.held_bytes or 0, step.peak_bytes or 0])
        return LayerCosts(
            batch=pair.batch,
            sequence=pair.sequence,
            hidden=pair.hidden,
            moved_elements=float(every[:, 0].mean()) / each * self.grid.size,
            moved_formula=pair.moved_elements(mode, self.grid),
            held_bytes=int(every[:, 1].max()),
            held_formula=held,
            peak_bytes=int(every[:, 2].max()),
        )

    def alone(self, device: torch.device) -> Comm:
        """Make the funnel of a rank whose others aren't there."""
        return Comm(self.grid, device=device, backend=NobodyElse())

    @staticmethod
    def table(result: Result) -> Table:
        head = ("batch", "hidden", "elements moved", "by the formula", "held, MB", "by the formula", "at most, MB")
        return head, [_row(costs) for costs in result.layers]


def _row(costs: LayerCosts) -> tuple[str, ...]:
    held = (f"{count / 1e6:.3f}" for count in (costs.held_bytes, costs.held_formula, costs.peak_bytes))
    return f"{costs.batch:,}", f"{costs.hidden:,}", f"{costs.moved_elements:,.0f}", f"{costs.moved_formula:,}", *held


class BothLayers:
    """Layers of a rank, and a step of theirs."""

    def __init__(self, comm: Comm, mode: TensorMode, pair: LayerPair, precision: PrecisionName) -> None:
        self._comm, self._formats = comm, Precision.parse(precision)
        comm.recorder = self._recorder = Recorder(timing=False)
        placements = [next(linear.placements("", mode)) for linear in pair.linears]
        weights = []
        for placed in placements:
            shard = torch.full((placed.local_numel(comm.grid),), 0.02, dtype=self._formats.master, device=comm.device)
            weights.append(ShardedWeight(placed, nn.Parameter(shard), placed.tile_shape(comm.grid)))
        self._schedule = WeightSchedule(comm, weights, [], self._formats, Overlap())
        self._layers = nn.Sequential(*(self._layer(*one, mode) for one in zip(pair.linears, weights, strict=True)))
        side = mode.stream
        rows = pair.tokens // comm.grid.batch_split
        for axis in side.rows:
            rows //= comm.grid[axis]
        self._shape = (1, rows, pair.hidden // comm.grid[side.features])

    def _layer(self, linear: Linear, weight: ShardedWeight, mode: TensorMode) -> nn.Module:
        local = Local(
            linear.name,
            self._comm,
            self._schedule,
            {"weight": weight.placement},
            {"weight": weight.shard},
            {"weight": weight},
            PLAIN,
            mode,
        )
        made = layer_of_grid(nn.Linear(linear.k, linear.n, bias=False, device="meta"), local)
        assert made is not None
        return made

    def forward(self) -> Tensor:
        """Begin a step, and return the output."""
        inputs = torch.ones(self._shape, dtype=self._formats.compute, device=self._comm.device, requires_grad=True)
        self._recorder.start_step("layers")
        self._tasks = ONE_BY_ONE.order(0, 1, 1).known
        self._schedule.start_step(self._tasks)
        self._schedule.start_task(self._tasks[0])
        output: Tensor = self._layers(inputs)
        return output

    def backward(self, output: Tensor) -> None:
        """End the step, of gradients like the output."""
        self._schedule.start_task(next(task for task in self._tasks if task.direction is Direction.BACKWARD))
        output.backward(torch.ones_like(output))
        self._schedule.finish_step()
        self._recorder.end_step()

    def sent_bytes(self) -> float:
        """Return what this rank has sent of the step, the mean of a broadcast's or a rooted sum's ranks."""

        def sent(kind: Kind, num_bytes: int, ranks: int) -> float:
            moved = moved_bytes(kind, num_bytes, ranks)
            return moved * (ranks - 1) / ranks if kind in ROOTED else moved  # one of them only sends, or receives

        tallies, grid = self._recorder.total.tallies.items(), self._comm.grid
        return sum(sent(Kind(kind), tally.num_bytes, grid[Axis(axis)]) for (kind, axis), tally in tallies)


class NobodyElse:
    """Channels of rank 0 whose other ranks aren't there: each is taken to have what it has, and nothing is added up."""

    rank = 0

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> "NobodyElse":
        return self

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if kind is Kind.ALL_GATHER:
            target.view(-1, source.numel()).copy_(source)
        elif kind is Kind.REDUCE_SCATTER:
            target.copy_(source[: target.numel()])
        if pending is not None:
            pending.end()
        return nothing
