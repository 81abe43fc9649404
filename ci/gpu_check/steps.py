"""Parity of a training step: the engine on the device against the serial model in float64 on the processor.

BOUNDS are of the loss's relative difference, and of the norm of what a gradient or a weight's change is off by, by its
own norm. In fp32 the roundings of a few blocks come to some tens of eps (2^-23), where a bound of 1000 leaves room and
TF32 none. In bf16 each of about twenty roundings on a gradient's way is up to half an eps (2^-7) and at random, which
comes to two eps, and for biases, whose gradients are sums that mostly cancel, to five; the bound is sixteen, as the
same code is held to the other bound in fp32. A weight changes by a gradient through AdamW, whose epsilon is chosen
large enough here that it follows the gradient: with the usual one a first step is the gradient's sign, and rounding
decides it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.parallel.serial_state import full_gradients, full_state_dict
from engine.peers.alternate import peer_side
from engine.peers.contest import Case
from engine.peers.ours import trainer
from engine.peers.peer import Values, adamw, mean_loss, serial_model
from engine.result.gpu_check import Finding
from engine.result.metrics import relative_difference
from engine.training.config import OptimConfig
from gpu_check.rounding import distance

BOUNDS = {"fp32": 1000 * 2.0**-23, "bf16": 16 * 2.0**-7}
OPTIM = OptimConfig(learning_rate=1e-2, clip=0.0, eps=1e-3)
MODELS: tuple[Architecture, ...] = (
    GPTConfig("GPT", layers=2, hidden=128, heads=2, vocabulary=512, sequence=64),
    LlamaConfig("Llama", layers=2, hidden=128, heads=4, kv_heads=2, ffn=256, vocabulary=512, sequence=64),
)


class Reference:
    """The serial model in float64, and what its last step did. before: its weights as it was built."""

    def __init__(self, case: Case) -> None:
        self._model = serial_model(case, "cpu")
        self._optimizer = adamw(case.optim, self._model.parameters())
        self.before = self._weights()

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer. Nothing is clipped."""
        self._optimizer.zero_grad()
        loss = mean_loss(self._model, self._model, tokens_BS, targets_BS)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), math.inf)
        self._optimizer.step()
        return Values(loss.item(), norm.item())

    def gradients(self) -> dict[str, Tensor]:
        """By their names."""
        return {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}

    def changes(self) -> dict[str, Tensor]:
        """Of the weights."""
        return {name: after - self.before[name] for name, after in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._model.named_parameters()}


def steps(device: torch.device, name: str) -> Iterator[Finding]:
    """A finding a network. name: of the number format."""
    for model in MODELS:
        case = Case(model=model, sequences=4, precision="fp64", optim=OPTIM)
        reference = Reference(case)
        exact = peer_side(case, Comm(Grid()), reference)()
        comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
        ours = trainer(replace(case, precision=name), comm)  # type: ignore[arg-type]
        loss = relative_difference(ours.step().loss, exact.loss)
        gradients = _worst(full_gradients(ours.model), reference.gradients())
        after = full_state_dict(ours.model)
        changed = {one: after[one].double() - before for one, before in reference.before.items()}
        changes = _worst(changed, reference.changes())
        worst = max(loss, gradients[0], changes[0])
        yield Finding(
            name=f"training step of {model.name}, {name}",
            status="pass" if worst <= BOUNDS[name] else "fail",
            figure=worst,
            want=f"at most {BOUNDS[name]:.2g} from float64",
            sentence=f"loss {loss:.1e}, worst gradient {gradients[0]:.1e} ({gradients[1]}), "
            f"worst change of a weight by AdamW {changes[0]:.1e} ({changes[1]})",
        )


def _worst(ours: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest distance, and whose it is; one that is missing is infinitely far."""
    return max((distance(ours[name], of) if name in ours else float("inf"), name) for name, of in exact.items())
