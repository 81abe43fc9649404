"""The same network by Hugging Face's transformers: their GPT-2 and Llama, built of a configuration, on one rank.

Nothing is downloaded: the weights are those of the serial model under other names. Attention is torch's fused one
(sdpa); bf16 throughout, or by autocast.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.models.adapters.rope import LLAMA3
from engine.models.adapters.transformers_gpt2 import GPT2
from engine.models.adapters.transformers_llama import LLAMA
from engine.models.adapters.values import library_state
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import UNSCALED_SEQUENCE, LlamaConfig
from engine.peers.contest import Case, Unavailable
from engine.peers.masters import Masters
from engine.peers.peer import Values, accumulate, autocast, serial_model
from engine.peers.settings import chosen
from engine.precision import at_least_fp32

try:
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM
except ImportError:
    raise Unavailable("transformers is not installed here: pip install '.[peers]'.") from None


class HuggingFace:
    """A training step with their model and the optimizer of all peers."""

    def __init__(self, case: Case, comm: Comm) -> None:
        self._case, self._device = case, comm.device
        if case.precision == "fp64":
            raise Unavailable("transformers computes parts of a network in fp32 at most: compare in fp32 or bf16.")
        serial = serial_model(case, comm.device).state_dict()
        with torch.device(comm.device):
            self._model = build(case, comm.device.type)
        adapter = LLAMA if isinstance(case.model, LlamaConfig) else GPT2
        stored = adapter.stored(case.model)
        theirs = library_state(stored, {name: value for name, value in serial.items() if name in stored.parts})
        self._model.load_state_dict(theirs | {second: theirs[first] for second, first in stored.aliases.items()})
        del serial, theirs
        if case.checkpoint_activations:
            self._model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._model.train()
        self._masters = Masters(case, self._model)
        self._optimizer = self._masters.adamw(case)

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        loss = accumulate(tokens_BS, targets_BS, self._case.peer_micro_batch, self._loss)
        self._masters.take_gradients()
        norm = nn.utils.clip_grad_norm_(self._masters.parameters, self._case.optim.clip)
        self._optimizer.step()
        return Values(loss.item(), norm.item())

    def _loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        with autocast(self._case, self._device):
            logits_BSV = self._model(tokens_BS, use_cache=False).logits
        return F.cross_entropy(at_least_fp32(logits_BSV).flatten(0, 1), targets_BS.flatten())


def build(case: Case, device: str) -> "GPT2LMHeadModel | LlamaForCausalLM":
    """Their network of the case's shape. Raises Unavailable for a shape that they have no network for."""
    shape = case.model
    common = chosen("transformers", "from_config", device)
    common |= {"tie_word_embeddings": bool(shape.ties), "use_cache": False}
    common |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "vocab_size": shape.vocabulary}
    if isinstance(shape, LlamaConfig) and not (shape.qkv_bias or shape.qk_norm):
        # Nothing but a warning follows from it.
        longest = max(shape.sequence, int(UNSCALED_SEQUENCE * shape.rope_scaling))
        rope: dict[str, float | str] = {"rope_type": "default", "rope_theta": shape.rope_theta}
        if shape.rope_scaling != 1:
            rope |= {"rope_type": "llama3", "factor": shape.rope_scaling}
            rope |= LLAMA3
        return LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, rms_norm_eps=shape.norm_eps,
                max_position_embeddings=longest, rope_parameters=rope, head_dim=shape.head_size, **common,
            )
        )  # fmt: skip
    learnt = isinstance(shape, GPTConfig) and shape.rotary is None and not shape.parallel_residual
    if isinstance(shape, GPTConfig) and learnt and shape.norm == "layernorm" and shape.bias:
        activation = "gelu" if shape.activation == "gelu" else "gelu_new"
        return GPT2LMHeadModel(
            GPT2Config(
                n_positions=shape.rows_of_positions, n_embd=shape.hidden, n_layer=shape.layers, n_head=shape.heads,
                n_inner=shape.wide, layer_norm_epsilon=shape.norm_eps, activation_function=activation,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common,
            )
        )  # fmt: skip
    raise Unavailable(f"transformers has no network like {shape.name}: its GPT-2 takes LayerNorm and biases.")
