"""A training step of the engine on the device, in each of its ways (ways.py), is compared with the serial model in
float64 on the processor, and with itself: twice from the same start it is the same to the last bit.

In fp32 BOUND limits the relative difference of the loss, and the norm of what a gradient or a weight's change is off
by, by its own norm: the roundings of a few blocks come to some tens of eps (2^-23), where a bound of 1000 leaves room
and TF32 none. In bf16 each gradient and each change is held to what the serial model in bf16 on the same device is off
for the same seeds (rounding.py). The loss is one number, whose roundings may happen to cancel: it may be LOSS_TIMES
times as far off as the worst of the serial model's. A weight changes by a gradient through AdamW, whose epsilon is
chosen large enough here that it follows the gradient: with the usual one a first step is the gradient's sign, and
rounding decides it.

A U-Net is held to BOUND alone. In bf16 the biases before its norms, whose groups are of two channels, scatter too much
over seeds to be decided; and cuDNN's convolutions may add in any order, so that a step needn't be the same again.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.unet.config import COMPARED_STD, UNetConfig
from engine.parallel.serial_state import full_gradients, full_state_dict
from engine.peers.comparison import Case
from engine.peers.peer import StepMetrics, Tensors, adamw, mean_divisor, serial_loss, serial_model
from engine.peers.timed_side import on_batches
from engine.result.metrics import relative_difference
from engine.result.schema.gpu_check import Finding
from engine.training.trainer import Trainer
from engine.training_record import OptimConfig
from gpu_check import rounding
from gpu_check.findings import passes_if
from gpu_check.rounding import distance, times_as_far
from gpu_check.ways import IN_FP32, USUAL, WAYS, Way

BOUND = 1000 * 2.0**-23
LOSS_TIMES = 4
OPTIM = OptimConfig(learning_rate=1e-2, clip=0.0, eps=1e-3)
UNET = UNetConfig("U-Net", 64, (1,), 1, (), head_channels=32, image=4, last_std=COMPARED_STD)
MODELS: tuple[Architecture, ...] = (
    GPTConfig("GPT", layers=2, hidden=128, heads=2, vocabulary=512, sequence=64),
    LlamaConfig("Llama", layers=2, hidden=128, heads=4, kv_heads=2, ffn=256, vocabulary=512, sequence=64),
    UNET,
)
CASE = Case(MODELS[0], Batch(4), precision="fp64", optim=OPTIM)


class SerialTraining:
    """The serial model on a device, in float64 by default, and what its last step did. before: its first weights."""

    def __init__(self, case: Case, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self._case, self._device = case, torch.device(device)
        self._model = serial_model(case, device).to(dtype)
        self._optimizer = adamw(case.optim, self._model.parameters())
        self.before = self._weights()

    def steps(self, case: Case) -> Callable[[], StepMetrics]:
        """Return a function that takes a step at each call, on a whole batch."""
        return on_batches(self.step, case, range(case.batch.sequences), self._device)

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.Peer. Nothing is clipped."""
        self._optimizer.zero_grad()
        loss = serial_loss(self._model, self._model, batch, mean_divisor(self._case, batch))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), math.inf)
        self._optimizer.step()
        return StepMetrics(loss.item(), norm.item())

    def follow(self, gradients: Mapping[str, Tensor]) -> None:
        """Change the weights by these gradients."""
        for name, parameter in self._model.named_parameters():
            parameter.grad = gradients[name].to(parameter.dtype)
        self._optimizer.step()

    def take(self, other: "SerialTraining") -> None:
        """Take another one's weights."""
        self._model.load_state_dict(other._model.state_dict())

    def gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}

    def changes(self) -> dict[str, Tensor]:
        """Return the weights' changes since the model was built, by name."""
        return {name: after - self.before[name] for name, after in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._model.named_parameters()}


class StepResult(NamedTuple):
    """Results of steps: the last one's loss and gradients by name, and all changes of weights."""

    loss: float
    gradients: Mapping[str, Tensor]
    changes: Mapping[str, Tensor]


Steps = tuple[StepResult, StepResult, StepResult]
"""The steps of one seed: ours, plain PyTorch's and the exact one."""


def exact(case: Case, count: int = 1) -> StepResult:
    """Return the serial model's steps in float64. count: how many."""
    reference = SerialTraining(case)
    step = reference.steps(case)
    loss = [step().loss for _ in range(count)][-1]
    return StepResult(loss, reference.gradients(), reference.changes())


def plain(case: Case, device: torch.device, count: int = 1) -> StepResult:
    """Take the serial model's steps on the device in bf16, whose gradients change weights of fp32, as the engine's."""
    low, masters = SerialTraining(case, device, torch.bfloat16), SerialTraining(case, device, torch.float32)
    step = low.steps(case)
    for _ in range(count):
        loss = step().loss
        masters.follow(low.gradients())
        low.take(masters)
    return StepResult(loss, low.gradients(), masters.changes())


def engines(case: Case, device: torch.device, name: str, way: Way = USUAL) -> StepResult:
    """Return the engine's step on the device in a number format."""
    comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
    return step_result(way.trainer(replace(case, precision=name), comm))  # type: ignore[arg-type]


def step_result(training: Trainer, count: int = 1) -> StepResult:
    """Take so many steps; rank 0 knows what they did, the others only the loss. Collective."""
    before = full_state_dict(training.model)
    loss = [training.step().loss for _ in range(count)][-1]
    after = full_state_dict(training.model)
    changes = {one: after[one].double() - value.double() for one, value in before.items()}
    return StepResult(loss, full_gradients(training.model), changes)


def steps(device: torch.device, name: str) -> Iterator[Finding]:
    """Give a finding for each way of each network, and one more of each but a U-Net. name: the number format."""
    for model in MODELS:
        case, what = replace(CASE, model=model), f"training step of {model.name}"
        if model is not UNET:
            yield repeated(case, device, name)
        if name == "fp32":
            wanted = exact(case)
            for way in (way for way in WAYS if way is not IN_FP32):
                yield by_bound(f"{what}{way.words}", engines(case, device, name, way), wanted)
        elif model is not UNET:
            yield from _in_bf16(case, device, what)


def _in_bf16(case: Case, device: torch.device, what: str) -> Iterator[Finding]:
    @cache
    def others(seed: int) -> tuple[StepResult, StepResult]:
        of = replace(case, seed=seed)
        return plain(of, device), exact(of)

    def taken(seed: int, way: Way) -> Steps:
        return engines(replace(case, seed=seed), device, "bf16", way), *others(seed)

    for way in WAYS:
        yield decided(f"{what}{way.words}", partial(taken, way=way))


def repeated(case: Case, device: torch.device, name: str) -> Finding:
    """Compare two steps from one start; sequences are so short that even fused attention adds in one order."""
    one, other = engines(case, device, name), engines(case, device, name)
    pairs = [
        (mine[of], theirs[of])
        for mine, theirs in ((one.gradients, other.gradients), (one.changes, other.changes))
        for of in mine
    ]
    differing = sum(int((mine != theirs).sum()) for mine, theirs in pairs)
    return passes_if(
        not differing and one.loss == other.loss,
        f"training step of {case.model.name} once more, {name}",
        "none differs",
        f"of {sum(mine.numel() for mine, _ in pairs):,} of gradients and of changes of weights",
        figure=differing,
        unit="elements",
    )


def by_bound(what: str, ours: StepResult, wanted: StepResult) -> Finding:
    """Judge a step of ours in fp32 by the exact one."""
    loss = relative_difference(ours.loss, wanted.loss)
    gradients = _farthest(ours.gradients, wanted.gradients)
    changes = _farthest(ours.changes, wanted.changes)
    farthest, want = max(loss, gradients[0], changes[0]), f"at most {BOUND:.2g} from float64"
    sentence = (
        f"loss {loss:.1e}, worst gradient {gradients[0]:.1e} ({gradients[1]}), "
        f"worst change of a weight by AdamW {changes[0]:.1e} ({changes[1]})"
    )
    return passes_if(farthest <= BOUND, f"{what}, fp32", want, sentence, figure=farthest)


def decided(what: str, run: Callable[[int], Steps]) -> Finding:
    """Judge steps in bf16 over the first seeds, and over more while undecided. run: takes those of a seed."""
    runs: list[Steps] = []
    for look in range(rounding.LOOKS):
        runs += [run(seed) for seed in range(len(runs), len(rounding.SEEDS) << look)]
        found = judged(what, runs, rounding.LOOKS)
        if found.status != "undecided":
            break
    return found


def judged(what: str, runs: Sequence[Steps], looks: int = 1) -> Finding:
    """Judge steps in bf16. looks: as of rounding.worst."""
    worst = rounding.worst((_ratios(*run) for run in runs), looks)
    loss, plain_loss = (max(relative_difference(run[side].loss, run[2].loss) for run in runs) for side in (0, 1))
    return Finding(
        name=f"{what}, bf16",
        status=worst.outcome if loss <= LOSS_TIMES * plain_loss else "fail",
        figure=worst.times,
        want=rounding.WANT,
        sentence=f"over {len(runs)} seeds the worst is the {worst.name}; loss off by {loss:.1e}, plain PyTorch's by "
        f"{plain_loss:.1e}, of which {LOSS_TIMES} times are allowed",
    )


def _ratios(ours: StepResult, theirs: StepResult, wanted: StepResult) -> dict[str, float]:
    """Say how many times as far off as plain PyTorch's each gradient is, and each change of a weight."""
    kinds = {
        "gradient": (ours.gradients, theirs.gradients, wanted.gradients),
        "change by AdamW": (ours.changes, theirs.changes, wanted.changes),
    }
    return {
        f"{kind} of {name}": times_as_far(mine.get(name), plain_ones[name], of)
        for kind, (mine, plain_ones, exact_ones) in kinds.items()
        for name, of in exact_ones.items()
    }


def _farthest(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest distance, and whose it is; one that is missing is infinitely far."""
    return max((distance(ours[name], of) if name in ours else float("inf"), name) for name, of in wanted.items())
