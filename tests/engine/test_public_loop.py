"""A training loop of the user's own: own batches, criterion and optimizer of torch around parallelize()."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_parity import BERT, EAGER, FAMILIES, SMALL, TOLERANCE
from test_unet_grid import GUIDED
from torch import Tensor
from training import SEED, Case, batch_of_step, build_serial, error
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import SPLITTING_ROWS, Grid
from engine.models.architecture import Architecture
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.parallel.public_loop import Criterion
from engine.parallel.serial_state import full_state_dict
from engine.precision import Precision
from engine.tensor_mode import SPLIT, SPLIT_HEADS

ROOT = Path(__file__).parents[2]
FP64 = Precision.parse("fp64")
STEPS, MICRO_BATCHES, LIMIT, RATE = 3, 2, 0.05, 0.7


def smoothed(output: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """Cross-entropy with smoothed labels over the places whose target is even, which differ from rank to rank."""
    logits, targets = output.flatten(0, 1), batch["targets"].flatten()
    chosen = targets % 2 == 0
    total = F.cross_entropy(logits[chosen], targets[chosen], label_smoothing=0.1, reduction="sum")
    return total, int(chosen.sum())


def absolute(output: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, float]:
    return (output - batch["pixels"] / 255).abs().sum(), float(output.numel())


def place(comm: Comm) -> int:
    """Return which part of the batch is this rank's."""
    return comm.grid.position(comm.coords, SPLITTING_ROWS)


def settings(config: Architecture, criterion: Criterion) -> tuple[Case, Criterion]:
    return Case(config, sequences=16, micro_batches=MICRO_BATCHES, checkpoint=1, overlap=EAGER), criterion


CASES = {**{name: settings(FAMILIES[name], smoothed) for name in ("gpt", "llama")}, "unet": settings(GUIDED, absolute)}
for mode in (SPLIT, SPLIT_HEADS):
    own, criterion = CASES["gpt"]
    CASES[f"{mode.name}-{mode.by_heads}"] = replace(own, mode=mode), criterion


def readme_loop() -> str:
    """Return the code of the README, in float64."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for written, own in {'"fp32"': '"fp64"', "seed=0": f"seed={SEED}", "1.0": str(LIMIT)}.items():
        assert code.count(written) == 1
        code = code.replace(written, own)
    return code + "    found.append((loss.item(), norm.item()))\n"


@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 2, 1)], ids=str)
def test_the_readmes_lines_train_as_the_serial_model(grid: Grid) -> None:
    case = Case(SMALL, sequences=16, checkpoint=1)

    def train(comm: Comm) -> tuple[list[tuple[float, float]], dict[str, Tensor]]:
        names: dict[str, Any] = {
            **{
                "torch": torch,
                "parallelize": parallelize,
                "Precision": Precision,
                "Grid": Grid,
                "network": case.config,
            },
            **{"Comm": lambda _: comm, "criterion": smoothed, "found": []},
            "batches": [
                {name: rows.chunk(grid.batch_split)[place(comm)] for name, rows in batch_of_step(case, step).items()}
                for step in range(STEPS)
            ],
        }
        exec(readme_loop(), names)
        return names["found"], full_state_dict(names["model"])

    (numbers, whole), *_ = run_ranks(grid, train)
    expected, weights = train_alone(case, smoothed, lr=0.1, momentum=0.0)
    assert list(sum(numbers, ())) == pytest.approx(expected, rel=TOLERANCE)
    assert max(error(whole[name], weights[name]) for name in weights) < TOLERANCE


def train_own(comm: Comm, case: Case, criterion: Criterion) -> tuple[list[float], dict[str, Tensor]]:
    model = parallelize(
        case.config,
        comm,
        precision=FP64,
        seed=SEED,
        overlap=case.overlap,
        checkpoint_every=case.checkpoint,
        mode=case.mode,
    )
    optimizer = model.optimizer(torch.optim.SGD, lr=RATE, momentum=0.9)
    share = case.sequences // comm.grid.batch_split
    first = place(comm) * share
    found = []
    for step in range(STEPS):
        own = {name: tensor[first : first + share] for name, tensor in batch_of_step(case, step).items()}
        model.start_step(MICRO_BATCHES)
        for part in range(MICRO_BATCHES):
            model.loss({name: tensor.chunk(MICRO_BATCHES)[part] for name, tensor in own.items()}, criterion).backward()
        loss = model.finish_step()
        norm = model.clip_gradients(LIMIT)
        optimizer.step()
        optimizer.zero_grad()  # which everybody writes, and which changes nothing
        assert loss is not None
        found += [loss.item(), norm.item()]
    return found, full_state_dict(model)


def train_alone(
    case: Case, criterion: Criterion, lr: float = RATE, momentum: float = 0.9
) -> tuple[list[float], dict[str, Tensor]]:
    model = build_serial(Case(case.config, precision="fp64"))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    found = []
    for step in range(STEPS):
        batch = batch_of_step(case, step)
        optimizer.zero_grad()
        total, count = criterion(model(*model.task.inputs(batch)), batch)
        loss = total / count
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        assert norm > LIMIT
        optimizer.step()
        found += [loss.item(), norm.item()]
    return found, {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 2, 1), Grid(2, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_loop_of_ones_own_trains_as_the_serial_one(name: str, grid: Grid) -> None:
    case, criterion = CASES[name]
    expected, weights = train_alone(case, criterion)
    found = run_ranks(grid, lambda comm: train_own(comm, case, criterion))
    assert all(numbers == pytest.approx(expected, rel=TOLERANCE) for numbers, _ in found)
    whole = found[0][1]  # which only the first rank has
    assert max(error(whole[name], weights[name]) for name in weights) < TOLERANCE


def model_of(config: Architecture = SMALL, precision: Precision = FP64) -> ParallelModel:
    return parallelize(config, Comm(Grid()), precision=precision, seed=SEED)


@pytest.mark.parametrize("kind", [torch.optim.Muon, torch.optim.Adafactor, torch.optim.LBFGS], ids=lambda k: k.__name__)
def test_an_optimizer_that_mixes_elements_of_a_weight_is_refused(kind: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(UsageError, match=kind.__name__):
        model_of().optimizer(kind)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((one, {}) for one in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam)),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"nesterov": True, "momentum": 0.5}),
    ],
)
def test_an_optimizer_of_single_elements_is_taken(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    assert isinstance(model_of().optimizer(kind, lr=0.1, **options), kind)


@pytest.mark.parametrize(
    "found",
    [lambda out: out.mean(), lambda out: (out.sum(),), lambda out: (out, 3), lambda out: (out.sum(), "all")],
    ids=["mean", "one", "not a sum", "not a count"],
)
def test_a_criterion_without_its_count_is_refused(found: Any) -> None:
    model, batch = model_of(), batch_of_step(Case(SMALL), 0)
    model.start_step()
    with pytest.raises(UsageError, match="criterion"):
        model.loss(batch, lambda output, _: found(output))


def test_losses_of_a_step_come_from_one_criterion() -> None:
    model, batch = model_of(), batch_of_step(Case(SMALL), 0)
    model.start_step(2)
    model.loss(batch, smoothed).backward()
    with pytest.raises(UsageError, match="criterion"):
        model.loss(batch)


def test_stages_are_refused_by_their_number() -> None:
    def refused(comm: Comm) -> str:
        model = parallelize(BERT, comm, precision=FP64, seed=SEED)
        with pytest.raises(UsageError, match="2 stages"):
            model.start_step()
        return "refused"

    assert run_ranks(Grid(pipe=2), refused) == ["refused"] * 2
