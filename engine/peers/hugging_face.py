"""The same network by Hugging Face's transformers: their GPT-2 and Llama, built of a configuration, on one rank.

Nothing is downloaded: the weights are those of the serial model under other names. Attention is torch's fused one
(sdpa), bf16 is by autocast.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.models.gpt.shape import GPTShape
from engine.models.llama.model import EPSILON, KEPT_BELOW, SLOWED_ABOVE, UNSCALED_SEQUENCE
from engine.models.llama.shape import LlamaShape
from engine.peers.contest import Case, Unavailable
from engine.peers.names import by_halves
from engine.peers.peer import Values, adamw, autocast, serial_model
from engine.precision import at_least_fp32

try:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
except ImportError:
    raise Unavailable("transformers is not installed here: pip install '.[peers]'.") from None

GPT2_NAMES = {
    "tokens": "transformer.wte", "positions": "transformer.wpe", "blocks": "transformer.h", "norm1": "ln_1",
    "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "norm2": "ln_2", "feed_forward.fc1": "mlp.c_fc",
    "feed_forward.fc2": "mlp.c_proj", "norm": "transformer.ln_f", "head": "lm_head",
}  # fmt: skip
LLAMA_NAMES = {
    "tokens": "model.embed_tokens", "blocks": "model.layers", "norm1": "input_layernorm",
    "attention.out": "self_attn.o_proj", "norm2": "post_attention_layernorm", "feed_forward.down": "mlp.down_proj",
    "norm": "model.norm", "head": "lm_head",
}  # fmt: skip


class HuggingFace:
    """A training step with their model and the optimizer of all peers."""

    def __init__(self, case: Case, comm: Comm) -> None:
        self._case, self._device = case, comm.device
        if case.precision == "fp64":
            raise Unavailable("transformers computes parts of a network in fp32 at most: compare in fp32 or bf16.")
        serial = serial_model(case, comm.device).state_dict()
        with torch.device(comm.device):
            self._model = build(case)
        self._model.load_state_dict(dict(renamed(case, serial)))
        del serial
        if case.checkpoint_activations:
            self._model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._model.train()
        self._optimizer = adamw(case.optim, self._model.parameters())

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        with autocast(self._case, self._device):
            logits_BSV = self._model(tokens_BS, use_cache=False).logits
        loss = F.cross_entropy(at_least_fp32(logits_BSV).flatten(0, 1), targets_BS.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._case.optim.clip)
        self._optimizer.step()
        return Values(loss.item(), norm.item())


def build(case: Case) -> "GPT2LMHeadModel | LlamaForCausalLM":
    """Their network of the case's shape. Raises Unavailable for a shape that they have no network for."""
    shape = case.model
    common = {"attn_implementation": "sdpa", "tie_word_embeddings": bool(shape.ties), "use_cache": False}
    common |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "vocab_size": shape.vocabulary}
    if isinstance(shape, LlamaShape):
        longest = max(
            shape.sequence, int(UNSCALED_SEQUENCE * shape.rope_scaling)
        )  # nothing but a warning follows from it
        rope: dict[str, float | str] = {"rope_type": "default", "rope_theta": shape.rope_theta}
        if shape.rope_scaling != 1:
            rope |= {"rope_type": "llama3", "factor": shape.rope_scaling}
            rope |= {"original_max_position_embeddings": UNSCALED_SEQUENCE}
            rope |= {"low_freq_factor": UNSCALED_SEQUENCE / SLOWED_ABOVE}
            rope |= {"high_freq_factor": UNSCALED_SEQUENCE / KEPT_BELOW}
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, rms_norm_eps=EPSILON,
                max_position_embeddings=longest, rope_parameters=rope, **common,
            )
        )  # fmt: skip
    if isinstance(shape, GPTShape) and shape.norm == "layernorm" and shape.bias:
        return GPT2LMHeadModel(
            GPT2Config(
                n_positions=shape.sequence, n_embd=shape.hidden, n_layer=shape.layers, n_head=shape.heads,
                activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common,
            )
        )  # fmt: skip
    raise Unavailable(f"transformers has no network like {shape.name}: its GPT-2 takes LayerNorm and biases.")


def renamed(case: Case, serial: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The serial model's state under their names, in their layout."""
    shape = case.model
    for name, value in serial.items():
        owner, _, kind = name.rpartition(".")
        before, _, part = owner.partition(".") if owner.startswith("blocks.") else ("", "", owner)
        number, _, part = part.partition(".") if before else ("", "", part)
        names = LLAMA_NAMES if isinstance(shape, LlamaShape) else GPT2_NAMES
        prefix = f"{names['blocks']}.{number}." if before else ""
        if not isinstance(shape, LlamaShape):
            inside = bool(before) and value.ndim == 2  # their matrices of a block are stored the other way round
            yield f"{prefix}{names[part]}.{kind}", value.t() if inside else value
        elif part == "attention.qkv":
            keys = shape.kv_heads * shape.head_size
            q, k, v = value.split([shape.hidden, keys, keys])
            for letter, rows in (("q", by_halves(q, shape.head_size)), ("k", by_halves(k, shape.head_size)), ("v", v)):
                yield f"{prefix}self_attn.{letter}_proj.{kind}", rows
        elif part == "feed_forward.gate_up":
            for half, rows in zip(("gate", "up"), value.chunk(2), strict=True):
                yield f"{prefix}mlp.{half}_proj.{kind}", rows
        else:
            yield f"{prefix}{names[part]}.{kind}", value
