"""Hugging Face's transformers have the same network: their GPT-2 and Llama, built of a configuration, on one rank.

Nothing is downloaded: the weights are those of the serial model under other names. Attention is torch's fused one
(sdpa); bf16 is throughout, or by autocast.
"""

from typing import Any

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.peer import Tensors, autocast
from engine.peers.settings import chosen
from engine.peers.stages import mean_cross_entropy
from engine.peers.step import TrainingStep

try:
    from engine.peers.transformers_networks import load, network, scaling
except ImportError:
    raise Unavailable("transformers is not installed here: pip install '.[peers]'.") from None


class TransformersStep(TrainingStep):
    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        with autocast(self._case, self._device):
            logits_BSV = self._model(batch["tokens"], use_cache=False).logits
        return mean_cross_entropy(logits_BSV, batch["targets"]) * (batch["targets"].numel() / divisor)


class HuggingFace(TransformersStep):
    def __init__(self, case: Case, comm: Comm) -> None:
        check_precision(case)
        with torch.device(comm.device):
            model = build(case, comm.device.type)
        load(model, case, comm.device)
        super().__init__(case, model, comm.device)


def check_precision(case: Case) -> None:
    """Raises Unavailable for a precision in which they don't compute everything."""
    if case.precision == "fp64":
        raise Unavailable("transformers computes parts of a network in fp32 at most: compare in fp32 or bf16.")


def build(case: Case, device: str) -> Any:
    """Make their network of the case's shape. Raises Unavailable for a shape that they have no network for."""
    shape, options = case.model, chosen("transformers", "from_config", device)
    of_llama: dict[str, Any] = {}
    if isinstance(shape, LlamaConfig):
        rope = {"rope_type": "default", "rope_theta": shape.rope_theta} | scaling(shape)
        of_llama = {"rope_parameters": rope, "head_dim": shape.head_size}
    model = network(shape, options | of_llama, options)
    if model is None:
        raise Unavailable(f"transformers has no network like {shape.name}: its GPT-2 takes LayerNorm and biases.")
    return model
