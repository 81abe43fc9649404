"""Networks as libraries build them, small and in float64, and what they find on some tokens or images."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pretrained_folders import CONFIGURATIONS
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.models.denoising import Denoising
from engine.models.tasks import Task

VOCABULARY, SEQUENCE, SEQUENCES = 48, 6, 8
CONFIGS: dict[str, dict[str, Any]] = CONFIGURATIONS["built"]
LITGPT: dict[str, dict[str, Any]] = CONFIGURATIONS["litgpt"]
DIFFUSERS: dict[str, dict[str, Any]] = CONFIGURATIONS["diffusers"]
NETWORKS = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM", "ViT": "ViTForImageClassification"}


class WideAlone(TorchFunctionMode):
    """Libraries compute norms and angles in float32 at most. Here they widen to float64, so nothing is narrowed."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        func = Tensor.double if func is Tensor.float else func
        return func(*map(_wide, args), **wide)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


SHAPE = {"n_layer": 1, "n_embd": 64, "n_head": 8, "intermediate_size": 40, "block_size": SEQUENCE}


def build(name: str, **changed: Any) -> nn.Module:
    """In eval mode, so that GPT-2's dropout is none, with drawn weights."""
    torch.set_default_dtype(torch.float64)
    try:
        with WideAlone():
            model = _built(name, changed).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    return drawn(model)


def _built(name: str, changed: dict[str, Any]) -> nn.Module:
    if name in LITGPT:
        from litgpt import GPT, Config

        return GPT(Config(padded_vocab_size=VOCABULARY, **(SHAPE | LITGPT[name] | changed)))
    if name in DIFFUSERS:
        from diffusers import UNet2DModel

        return UNet2DModel(**(DIFFUSERS[name] | changed))
    import transformers

    kind, options = CONFIGS[name].values()
    network = NETWORKS.get(kind, f"{kind}ForCausalLM")
    return getattr(transformers, network)(getattr(transformers, f"{kind}Config")(**(options | changed)))


def drawn(model: nn.Module) -> nn.Module:
    """With large weights, all of which matter, and none of which is like another."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(generator=generator).mul_(0.2)
            if "norm" in name or ".ln_" in name:
                parameter.add_(1)
    return model


def batch_for(task: Task) -> dict[str, Tensor]:
    """As the task has it of random data."""
    rows = np.arange(SEQUENCES)
    made = task.batch(task.data.synthetic().read(5, rows), 5, rows)
    return {name: torch.from_numpy(array) for name, array in made.items()}


def loss_and_gradients(model: nn.Module, task: Task) -> tuple[float, dict[str, Tensor]]:
    """The mean, and its gradients by the library's names."""
    batch = batch_for(task)
    if isinstance(task, Denoising):
        return _denoised(model, task, batch)
    options = {"token_type_ids": batch["segments"]} if "segments" in batch else {}
    (first, *_) = task.inputs(batch)
    with WideAlone():
        found = model(first.double() if first.is_floating_point() else first, **options)
        logits = found if isinstance(found, Tensor) else found[0]
        targets = batch["labels"] if "labels" in batch else batch["targets"]
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _denoised(model: nn.Module, task: Denoising, batch: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    """diffusers numbers steps from 0."""
    noisy, steps = task.inputs(batch)
    with WideAlone():
        found = model(noisy.double(), steps - 1).sample
    loss = task.loss(task.criterion(), found, batch, task.valid(batch))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
