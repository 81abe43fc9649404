"""The parity tests can fail: each single collective of training, dropped or done twice, is noticed.

On grids of one or two axes of two ranks, so that all collectives can be falsified in turn.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_parity import TOLERANCE, serial
from training import Case, error, grid_id, start, step_parallel
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.vit.config import ViTConfig
from engine.overlap.flags import Overlap
from engine.parallel.serial_state import full_state_dict
from engine.tensor_mode import SPLIT, SPLIT_HEADS, SQUARE, SQUARE_AS_PUBLISHED

TINY: dict[str, Architecture] = {
    "gpt": GPTConfig("tiny", layers=1, hidden=8, heads=2, vocabulary=8, sequence=4),
    "bert": BertConfig("tiny", layers=1, hidden=8, heads=2, vocabulary=16, sequence=24),
    "vit": ViTConfig("tiny", layers=1, hidden=8, heads=2, image=4, patch=2, classes=4, head_std=0.02),
    "llama": LlamaConfig("tiny", layers=1, hidden=16, heads=4, kv_heads=2, ffn=8, vocabulary=8, sequence=4),
}
# The second step gathers ahead, keeps a block's weights for the recomputation and begins its sums over data early.
EAGER = Overlap(oar=True, ors=True, oag=True, cache=1, data=True, prefetch_depth=3, reduce_window=2, bucket_bytes=2e3)
CASES = {
    **{f"{name}-one-step": Case(config, sequences=4, steps=1, overlap=Overlap()) for name, config in TINY.items()},
    **{
        f"{name}-two-eager-steps": Case(config, sequences=8, micro_batches=2, checkpoint=True, steps=2, overlap=EAGER)
        for name, config in TINY.items()
    },
}
ONE_AXIS = [Grid(2, 1, 1, 1), Grid(1, 2, 1, 1), Grid(1, 1, 2, 1), Grid(1, 1, 1, 2)]


class Wrong:
    """Mutation of one call, with the kinds of all calls that belong to the steps."""

    def __init__(self, call: tuple[Axis, int] | None = None, mutation: str = "") -> None:
        """call: the axis of the falsified one, and its number on that."""
        self.call, self.mutation = call, mutation
        self.kinds: dict[tuple[Axis, int], Kind] = {}
        self.stepping = True

    def __call__(self, kind: Kind, axis: Axis, number: int) -> str | None:
        if self.stepping:
            self.kinds[axis, number] = kind
        return self.mutation if (axis, number) == self.call else None

    def error(self, case: Case, grid: Grid) -> float:
        """Return that of the losses and of the parameters after the steps."""
        ours, losses = run_ranks(grid, lambda comm: self._train(case, comm), mutate=self)[0]
        reference = serial(case)
        errors = [error(ours[name], reference.parameters[name]) for name in reference.parameters]
        return max(*errors, error(torch.tensor(losses), torch.tensor(reference.losses)))

    def _train(self, case: Case, comm: Comm) -> tuple[dict[str, torch.Tensor], list[float]]:
        model, losses = start(case, comm), []
        for step in range(case.steps):
            losses.append(step_parallel(case, model, step))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= case.learning_rate * parameter.grad  # type: ignore[operator]
        self.stepping = False
        return full_state_dict(model), losses


def _spread() -> Iterator[Any]:
    """Yield every case on every axis: of those of two steps a quarter every time."""
    for number, (name, case) in enumerate(CASES.items()):
        for place, grid in enumerate(ONE_AXIS):
            often = () if case.steps == 1 or (number + place) % 4 == 0 else pytest.mark.weekly
            yield pytest.param(case, grid, marks=often, id=f"{name}-{grid_id(grid)}")


def _of_modes() -> Iterator[Any]:
    """Yield every tensor mode on each axis that it splits rows along, a square on both, with networks by turns."""
    modes = {"rows": SPLIT, "heads": SPLIT_HEADS, "again": replace(SPLIT, gathers_again=True)}
    grids = [(name, mode, grid) for name, mode in modes.items() for grid in (Grid(x=2), Grid(y=2))]
    grids += [(mode.name, mode, Grid(2, 2)) for mode in (SQUARE, SQUARE_AS_PUBLISHED)]
    for number, (name, mode, grid) in enumerate(grids):
        for place, network in enumerate(TINY):
            case = replace(CASES[f"{network}-one-step"], mode=mode)
            often = () if (number, place) in ((0, 3), (3, 0)) else pytest.mark.weekly
            yield pytest.param(case, grid, marks=often, id=f"{name}-{network}-{grid_id(grid)}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "grid"), [*_spread(), *_of_modes()])
def test_one_wrong_collective_breaks_parity(case: Case, grid: Grid) -> None:
    right = Wrong()
    assert right.error(case, grid) < TOLERANCE
    assert right.kinds
    for call, kind in right.kinds.items():  # of two steps there are so many that each is falsified in one way only
        # A softmax doesn't depend on a shift that all ranks share.
        for mutation in ("drop",) if case.steps > 1 or kind is Kind.MAX_REDUCE else ("drop", "twice"):
            wrong = Wrong(call, mutation).error(case, grid)
            assert not wrong < TOLERANCE, f"{mutation} of call {call} of {len(right.kinds)}, {kind}"
