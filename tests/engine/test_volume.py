"""The recorder's bytes and calls equal the closed form of Algorithm 1 plus everything around it.

axonn-sc24 Eq. 1-5 give the linear layers: all-gather of k n / (Gx Gy Gz), reduce-scatter of k n / (Gx Gy), all-reduces
of m n / Gx and m k / Gy elements for the m rows of a rank. To that come norm statistics, embedding, loss, replicated
gradients, the data all-reduce of everything, and what activation checkpointing repeats.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from test_parity import SMALL
from training import Case, grid_id, start, step_parallel
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid


@dataclass
class Volume:
    """Calls and bytes by (kind, axis)."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, kind: str, axis: str, elements: float, *, size: int, times: int = 1) -> None:
        self.calls[kind, axis] += times
        self.num_bytes[kind, axis] += int(elements * size * times)


def closed_form(case: Case, grid: Grid) -> Volume:
    """Of one rank in one step of step_parallel()."""
    config, volume = case.config, Volume()
    h, vocabulary, layers = config.hidden, config.vocabulary, config.layers
    compute = {"fp64": 8, "fp32": 4, "bf16": 2}[case.precision]
    wide = max(compute, 4)
    m = Batch(case.sequences).per_rank(grid) // case.micro_batches * config.sequence
    again = 1 if case.checkpoint else 0
    x, y, z = grid.x, grid.y, grid.z

    for _ in range(case.micro_batches):
        for n, k, in_axis in [(3 * h, h, "y"), (h, h, "x"), (4 * h, h, "y"), (h, 4 * h, "x")]:
            block = n * k / (x * y)
            volume.add("all_gather", "z", block / z, size=compute, times=layers * (1 + again))
            volume.add("reduce_scatter", "z", block, size=compute, times=layers)
            normal = in_axis == "y"
            out_parts, in_parts, out_axis = (x, y, "x") if normal else (y, x, "y")
            # The last all-reduce of a block is not repeated: nothing after it needs its result.
            passes = 1 if k == 4 * h else 1 + again
            volume.add("all_reduce", in_axis, m * n / out_parts, size=compute, times=layers * passes)
            volume.add("all_reduce", out_axis, m * k / in_parts, size=compute, times=layers)
        # Token table and head, gathered and reduced once each even if they are one.
        for _ in range(2):
            volume.add("all_gather", "z", vocabulary * h / (x * y * z), size=compute)
            volume.add("reduce_scatter", "z", vocabulary * h / (x * y), size=compute)
        volume.add("all_reduce", "x", m * h / y, size=compute)  # embedding's output
        volume.add("all_reduce", "y", m * vocabulary / x, size=compute)  # logits
        volume.add("all_reduce", "x", m * h / y, size=compute)  # gradient of the head's input
        volume.add("max_reduce", "x", m, size=wide)
        volume.add("all_reduce", "x", 2 * m, size=wide)
        volume.add("all_gather", "y", 2 * m, size=wide, times=2 * layers * (1 + again) + 1)
        volume.add("all_reduce", "y", 2 * m, size=wide, times=2 * layers + 1)

    placements = config.placements().values()
    replicated = sum(p.local_numel(grid) for p in placements if not p.sharded)
    volume.add("all_reduce", "z", replicated, size=wide)
    volume.add("all_reduce", "data", sum(p.local_numel(grid) for p in placements), size=compute)
    for axis in ("z", "data"):
        volume.add("all_reduce", axis, 1, size=8)  # the reported loss
    active = {"x": x > 1, "y": y > 1, "z": z > 1, "data": grid.data > 1}
    volume.calls = Counter({key: n for key, n in volume.calls.items() if active[key[1]]})
    volume.num_bytes = Counter({key: n for key, n in volume.num_bytes.items() if active[key[1]]})
    return volume


def measured(case: Case, grid: Grid, steps: int = 1) -> list[Volume]:
    """Of every rank in the last of so many steps."""

    def one_step(comm: Comm) -> Volume:
        assert comm.recorder is not None
        model = start(case, comm)
        for step in range(steps):
            comm.recorder.clear()
            comm.recorder.start_step("all")
            step_parallel(case, model, step)
        comm.recorder.end_step()
        tallies = comm.recorder.total.tallies.items()
        return Volume(Counter({key: t.calls for key, t in tallies}), Counter({key: t.num_bytes for key, t in tallies}))

    return run_ranks(grid, one_step, record=True)


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(
    "grid",
    [Grid(2, 1, 1, 1), Grid(1, 2, 1, 1), Grid(1, 1, 2, 1), Grid(1, 1, 1, 2), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2)],
    ids=grid_id,
)
def test_recorded_bytes_and_calls_equal_the_closed_form(grid: Grid, checkpoint: bool, precision: str) -> None:
    case = Case(SMALL, sequences=16, micro_batches=2, checkpoint=checkpoint, precision=precision)
    expected = closed_form(case, grid)
    for rank in measured(case, grid):
        assert rank.calls == expected.calls
        assert rank.num_bytes == expected.num_bytes


def test_a_layer_is_gathered_twice_with_checkpointing_and_once_without() -> None:
    """Two, not three: what the recomputation gathers is kept for the block's backward. A tied head adds one gather."""
    layers, linear = SMALL.layers, 4
    for tied in (False, True):
        for checkpoint, per_layer in ((False, 1), (True, 2)):
            case = Case(replace(SMALL, tied=tied), sequences=2, checkpoint=checkpoint)
            calls = measured(case, Grid(1, 1, 2, 1))[0].calls
            assert calls["all_gather", "z"] == layers * linear * per_layer + 2
            assert calls["reduce_scatter", "z"] == layers * linear + 2
