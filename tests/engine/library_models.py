"""Networks as libraries build them, small and in float64, and what they find on some tokens or images."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.models.denoising import Denoising
from engine.models.tasks import Task

VOCABULARY, SEQUENCE, SEQUENCES = 48, 6, 8
COMMON = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
WIDTHS = COMMON | {"hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 16}
GROUPED = WIDTHS | {"num_key_value_heads": 8, "max_position_embeddings": SEQUENCE}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 30.0, "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED | {"rms_norm_eps": 1e-3}),
    "llama-tied": ("Llama", GROUPED | {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "gpt2": ("GPT2", COMMON | NO_DROPOUT | {"n_embd": 64, "n_layer": 1, "n_head": 16, "n_positions": SEQUENCE}),
    "gpt2-narrow": (
        "GPT2",
        COMMON
        | {"n_embd": 64, "n_layer": 1, "n_head": 8, "n_inner": 40, "n_positions": SEQUENCE + 2}
        | {"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False},
    ),
    "qwen2": ("Qwen2", GROUPED),
    "llama-padded": ("Llama", GROUPED | {"pad_token_id": 3}),
    "qwen3-padded": ("Qwen3", GROUPED | {"head_dim": 6, "pad_token_id": -1, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", GROUPED | {"head_dim": 6}),
    "neox": ("GPTNeoX", WIDTHS | {"num_attention_heads": 8, "max_position_embeddings": SEQUENCE, "rotary_pct": 0.5}),
    "neox-serial": (
        "GPTNeoX",
        WIDTHS
        | {"num_attention_heads": 8, "max_position_embeddings": SEQUENCE, "use_parallel_residual": False}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75}},
    ),
    "bert": (
        "Bert",
        WIDTHS
        | {"max_position_embeddings": SEQUENCE + 2, "layer_norm_eps": 1e-3}
        | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "bert-padded": (
        "Bert",
        WIDTHS
        | {"max_position_embeddings": SEQUENCE, "pad_token_id": 3}
        | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "vit": (
        "ViT",
        {"hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 16}
        | {"image_size": 8, "patch_size": 4, "num_labels": 16, "layer_norm_eps": 1e-3},
    ),
}
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


LITGPT: dict[str, dict[str, Any]] = {
    "litgpt-llama": {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "bias": False, "attn_bias": True}
    | {"n_query_groups": 4, "parallel_residual": False, "rotary_percentage": 1.0, "norm_qk": True, "head_size": 6},
    "litgpt-neox": {"rotary_percentage": 0.5, "gelu_approximate": "tanh"},
}
SHAPE = {"n_layer": 1, "n_embd": 64, "n_head": 8, "intermediate_size": 40, "block_size": SEQUENCE}

LEVELS = {"sample_size": 8, "block_out_channels": (64, 128), "layers_per_block": 1}
ATTENDING = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
DIFFUSERS: dict[str, dict[str, Any]] = {
    "unet": LEVELS | ATTENDING | {"norm_eps": 1e-3},
    "unet-ddpm": LEVELS
    | ATTENDING
    | {"attention_head_dim": None, "norm_eps": 1e-6, "downsample_padding": 0}
    | {"flip_sin_to_cos": False, "freq_shift": 1},
    "unet-blocks": LEVELS
    | {
        "down_block_types": ("AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("ResnetUpsampleBlock2D", "AttnUpBlock2D"),
    }
    | {"resnet_time_scale_shift": "scale_shift", "attn_norm_num_groups": 32, "attention_head_dim": 32}
    | {"downsample_type": "resnet", "out_channels": 6},
}


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

    kind, options = CONFIGS[name]
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
