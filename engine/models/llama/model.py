"""Serial Llama in plain PyTorch (Touvron et al. 2023; Llama 3: Grattafiori et al. 2024).

Pre-norm blocks of causal attention, whose key and value heads each serve a group of query heads, and a SwiGLU
feed-forward; RMSNorm, rotary positions, no biases. Qwen2 (Yang et al. 2024) adds biases of queries, keys and values,
Qwen3 (Yang et al. 2025) norms of queries and keys.

Shape suffixes: B sequences, S positions, H features, N heads, D features of a head, P = D / 2 pairs of them.
"""

from torch import Tensor, nn

from engine.layers.attention import Attention
from engine.layers.elementwise import AddNorm, Rotate, SwiGLU
from engine.layers.passes import Pass
from engine.models.llama.config import LlamaConfig
from engine.models.serial import SerialModel
from engine.models.transformer import rotation


class SelfAttention(nn.Module):
    """Causal attention [B, S, H] -> [B, S, H]; the fused rows are query, key and value heads."""

    def __init__(self, shape: LlamaConfig) -> None:
        super().__init__()
        self.head_size = shape.head_size
        self.queries_per_key = shape.heads // shape.kv_heads
        self.qkv = nn.Linear(shape.hidden, shape.attended + 2 * shape.keys, bias=shape.qkv_bias)
        self.norm_q = nn.RMSNorm(self.head_size, eps=shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.norm_k = nn.RMSNorm(self.head_size, eps=shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.rotate = Rotate()
        self.attend = Attention(causal=True)
        self.out = nn.Linear(shape.attended, shape.hidden, bias=False)

    def forward(self, x_BSH: Tensor, at: Pass, rotation_2SP: Tensor) -> Tensor:
        """Attend. The number of heads follows from the width of qkv's output."""
        heads_BSND = at.by_sample(self.qkv(x_BSH)).unflatten(2, (-1, self.head_size))
        keys = heads_BSND.shape[2] // (self.queries_per_key + 2)
        parts = heads_BSND.split([keys * self.queries_per_key, keys, keys], dim=2)  # their gradients lie as qkv's do
        q_BNSD, k_BNSD, v_BNSD = (part.transpose(1, 2) for part in parts)
        q_BNSD = self.rotate(self.norm_q(q_BNSD), rotation_2SP)
        k_BNSD = self.rotate(self.norm_k(k_BNSD), rotation_2SP)
        return self.out(self.attend(q_BNSD, k_BNSD, v_BNSD))


class FeedForward(nn.Module):
    """SwiGLU: [B, S, H] -> silu(gate) * up -> [B, S, H]; the fused projection's rows are gate and up."""

    def __init__(self, shape: LlamaConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.swiglu = SwiGLU()
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.down(self.swiglu(self.gate_up(x_BSH)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, shape: LlamaConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = SelfAttention(shape)
        self.norm2 = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)
        self.add_norm = AddNorm()

    def forward(self, x_BSH: Tensor, at: Pass, rotation_2SP: Tensor) -> Tensor:
        x_BSH, normed_BSH = self.add_norm(x_BSH, None, self.norm1)
        x_BSH, normed_BSH = self.add_norm(x_BSH, self.attention(normed_BSH, at, rotation_2SP), self.norm2)
        return x_BSH + self.feed_forward(normed_BSH)


class Llama(SerialModel):
    """Llama from tokens [B, S] to logits [B, S, V]. It has no dropout."""

    def __init__(self, shape: LlamaConfig) -> None:
        super().__init__(shape.task)
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden, padding_idx=shape.padding)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def begin(self, tokens_BS: Tensor, *, at: Pass) -> Tensor:  # type: ignore[override]
        """Embed the tokens."""
        return self.tokens(tokens_BS)

    def beside(self, x_BSH: Tensor, at: Pass) -> tuple[object, ...]:
        """Return the record of the pass, and the rotation of queries and keys."""
        return at, rotation(self.shape, at.positions, x_BSH.dtype)

    def end(self, x_BSH: Tensor, at: Pass) -> Tensor:
        """Compute logits of the next token at every position."""
        return self.head(self.norm(x_BSH))


SERIAL = Llama
