"""transformers' own parallelism: a network sharded as it is made, over tensor ranks, and by FSDP over data ranks.

By its plan for Llama the table and the head are split by the vocabulary, logits gathered, and the residual stream is
whole on each rank. Its GPT-2 has no plan and can't have one, as its layers are no nn.Linear: a GPT is its OPT, which is
the same network, with the like plan. Attention is torch's fused one; bf16 is throughout, or by autocast; clipping is by
the norm over all ranks. Its pipeline is not offered: nothing flows back through it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.stored import Names, Stored, stored
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.known.hugging_face import TransformersStep, build, check_precision, start_training
from engine.peers.layout import Layout
from engine.peers.peer import check_torch, rename_weights
from engine.peers.registry import choose_settings
from engine.peers.step import Masters, is_pure
from engine.precision import Precision

try:
    from transformers import OPTConfig, OPTForCausalLM
    from transformers.distributed import DistributedConfig
except ImportError:
    raise Unavailable("This transformers has no parallelism of its own: pip install 'transformers>=5.23'.") from None

LAYER = "model.decoder.layers.*"
PLAN = {f"{LAYER}.self_attn.{one}_proj": "colwise" for one in "qkv"} | {
    f"{LAYER}.self_attn.out_proj": "rowwise",
    f"{LAYER}.fc1": "colwise",
    f"{LAYER}.fc2": "rowwise",
    "model.decoder.embed_tokens": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}
"""Plan for OPT, made after that of its Llama."""
SHARDED = dict.fromkeys([LAYER, "model.decoder.embed_tokens", "model.decoder.embed_positions"], "free_full_weight")
"""Modules that are sharded over data ranks, likewise."""
BEFORE = 2
"""Rows of OPT's table of positions before the first one."""


class TransformersTP(TransformersStep):
    """Step on ranks in its order: tensor ranks are neighbours, then data."""

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        check_torch("The parallelism of transformers", "2.10")  # before, DTensor fails in its split table
        check_precision(case)
        self.data_rank = dist.get_rank() // layout.tensor
        shape = case.model
        llama = isinstance(shape, LlamaConfig)
        with torch.device("meta"):
            # A tied head is one parameter under two names, of which its plan finds one: they are tied afterwards.
            untied = replace(case, model=replace(shape, tied=False)) if isinstance(shape, LlamaConfig) else case
            model: Any = build(untied, device.type) if llama else opt(case, device.type)
        if is_pure(case):
            for parameter in model.parameters():
                parameter.data = parameter.data.to(Precision.parse(case.precision).compute)
        places = ADAPTERS["llama"].stored(case.model) if llama else opt_stored(case)
        config, _, mesh = type(model).prepare_distribute_model(
            DistributedConfig(
                tp_size=layout.tensor,
                fsdp_size=layout.data,
                tp_plan=None if llama else PLAN,
                fsdp_plan=None if llama else SHARDED,
            )
        )
        model = type(model).maybe_distribute_model(model, config, mesh)
        model.to_empty(device=device)
        if llama:
            model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)  # its angles aren't loaded
        else:
            for layer in model.model.decoder.layers:
                layer.self_attn.num_heads //= layout.tensor  # it counts on all heads, its Llama on what is there
        masters = _load(model, case, places, device)
        if case.model.ties:
            model.lm_head.weight = model.get_input_embeddings().weight
        start_training(model, case)
        # A table that is tied afterwards leaves the master of its head behind.
        pairs = [(parameter, masters[parameter]) for parameter in model.parameters()] if masters else []
        super().__init__(case, model, device, Masters((master for _, master in pairs), pairs) if pairs else None)


def opt(case: Case, device: str) -> "OPTForCausalLM":
    """Make the network of the case as an OPT. Raises Unavailable for a shape that it isn't."""
    shape = case.model
    known = isinstance(shape, GPTConfig) and shape.rotary is None and not shape.parallel_residual and shape.bias
    if not isinstance(shape, GPTConfig) or not known or shape.norm != "layernorm" or shape.norm_eps != 1e-5:
        raise Unavailable(f"transformers has no network like {shape.name} that its parallelism splits.")
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, ffn_dim=shape.wide, max_position_embeddings=shape.rows_of_positions,
            activation_function="gelu" if shape.activation == "gelu" else "gelu_new", dropout=0.0,
            attention_dropout=0.0, layerdrop=0.0, do_layer_norm_before=True,
            **choose_settings("transformers-tp", "from_config", device),
            tie_word_embeddings=False, use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


def opt_stored(case: Case) -> Stored:
    """Name where an OPT keeps its parameters, but for the rows before the first position."""
    decoder, rows = "model.decoder", np.arange(case.model.hidden)
    names: Names = {
        "tokens": f"{decoder}.embed_tokens",
        "positions": f"{decoder}.embed_positions",
        "blocks": f"{decoder}.layers",
        "norm1": "self_attn_layer_norm",
        "attention.qkv": [(f"self_attn.{one}_proj", rows) for one in "qkv"],
        "attention.out": "self_attn.out_proj",
        "norm2": "final_layer_norm",
        "feed_forward.fc1": "fc1",
        "feed_forward.fc2": "fc2",
        "norm": f"{decoder}.final_layer_norm",
        "head": "lm_head",
    }
    return stored(case.model, names)


@torch.no_grad()
def _load(model: Any, case: Case, places: Stored, device: torch.device) -> dict[nn.Parameter, nn.Parameter]:
    """Load this rank's part of every parameter; returns the master of each, where the case has masters."""
    masters: dict[nn.Parameter, nn.Parameter] = {}
    whole = rename_weights(case, places, device)
    for name, parameter in model.named_parameters():
        value = F.pad(whole[name], (0, 0, BEFORE, 0)) if name.endswith("embed_positions.weight") else whole[name]
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(value)
        if is_pure(case):
            masters[parameter] = nn.Parameter(value.clone())
    return masters
