"""Parts that transformers of several families share, in plain PyTorch."""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.layers.attention import Attention
from engine.layers.dropout import Dropout
from engine.layers.elementwise import GELU, AddNorm, Rotate
from engine.layers.passes import Pass
from engine.models.architecture import EvenHeads
from engine.models.llama.config import KEPT_BELOW, SLOWED_ABOVE, UNSCALED_SEQUENCE


class SelfAttention(nn.Module):
    """Multi-head attention [B, S, h] -> [B, S, h]; the fused projection's rows are (3, heads, head size).

    causal: whether a position takes none that come after it.
    """

    def __init__(self, hidden: int, head_size: int, *, causal: bool, bias: bool = True) -> None:
        super().__init__()
        self.head_size = head_size
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.rotate = Rotate()
        self.attend = Attention(causal=causal)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, at: Pass, rotation: Tensor | None = None) -> Tensor:
        """Attend. The number of heads follows from the width of qkv's output. rotation: see Rotate."""
        parts = (
            at.by_sample(self.qkv(x)).unflatten(2, (3, -1, self.head_size)).unbind(2)
        )  # so that their gradients lie as qkv's do
        q, k, v = (part.transpose(1, 2) for part in parts)
        if rotation is not None:
            q, k = self.rotate(q, rotation), self.rotate(k, rotation)
        return self.out(self.attend(q, k, v))


class FeedForward(nn.Module):
    """Feed-forward [B, S, h] -> wide -> [B, S, h] with GELU between. activation: gelu or gelu_tanh (approximate)."""

    def __init__(self, hidden: int, wide: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, wide, bias=bias)
        self.gelu = gelu(activation)
        self.fc2 = nn.Linear(wide, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.gelu(x, self.fc1))


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); or both of the same x, if the residual is parallel.

    norm: maker of a norm of the stream.
    """

    def __init__(
        self, shape: EvenHeads, layer: int, norm: Callable[[], nn.Module], *, causal: bool, bias: bool, parallel: bool
    ) -> None:
        super().__init__()
        self.norm1 = norm()
        self.attention = SelfAttention(shape.hidden, shape.head_size, causal=causal, bias=bias)
        self.dropout1 = Dropout(shape.dropout, 2 * layer + 1)
        self.norm2 = norm()
        self.feed_forward = FeedForward(shape.hidden, shape.wide, shape.activation, bias=bias)
        self.dropout2 = Dropout(shape.dropout, 2 * layer + 2)
        self.add_norm = AddNorm()
        self.parallel = parallel

    def forward(self, x: Tensor, at: Pass, rotation: Tensor | None = None) -> Tensor:
        x, normed = self.add_norm(x, None, self.norm1)
        attended = self.dropout1(self.attention(normed, at, rotation), at)
        if self.parallel:
            return x + attended + self.dropout2(self.feed_forward(self.norm2(x)), at)
        x, normed = self.add_norm(x, attended, self.norm2)
        return x + self.dropout2(self.feed_forward(normed), at)


def gelu(activation: str) -> GELU:
    """Make the activation of this name."""
    return GELU("tanh" if activation == "gelu_tanh" else "none")


class Rotary(Protocol):
    """Shape with rotary positions: each turns each pair of a head's first features by an angle (Su et al. 2021)."""

    @property
    def rotary_features(self) -> int: ...

    @property
    def rope_theta(self) -> float: ...

    @property
    def rope_scaling(self) -> float: ...


def rotary_frequencies(shape: Rotary, device: torch.device) -> Tensor:
    """Return radians a position for each pair of features of a head: [P] in float64."""
    turned = shape.rotary_features
    exponents_P = torch.arange(0, turned, 2, dtype=torch.float64, device=device) / turned
    frequencies_P = shape.rope_theta**-exponents_P
    if shape.rope_scaling == 1:
        return frequencies_P
    wavelengths_P = 2 * math.pi / frequencies_P
    kept_P = ((UNSCALED_SEQUENCE / wavelengths_P - 1) / (SLOWED_ABOVE / KEPT_BELOW - 1)).clamp(0, 1)
    return frequencies_P * (kept_P + (1 - kept_P) / shape.rope_scaling)


def rotation(shape: Rotary, positions_S: Tensor, dtype: torch.dtype) -> Tensor:
    """Return cosine and sine of the angle by which each position turns each pair: [2, S, P], in float32 at least."""
    angles_SP = positions_S.double().unsqueeze(1) * rotary_frequencies(shape, positions_S.device)
    return torch.stack([angles_SP.cos(), angles_SP.sin()]).to(torch.promote_types(dtype, torch.float32))
