"""Transformers of several families share these parts, in plain PyTorch."""

from torch import Tensor, nn

from engine.layers.attention import Attention
from engine.layers.elementwise import GELU, Rotate


class SelfAttention(nn.Module):
    """It is multi-head attention [B, S, h] -> [B, S, h]; the fused projection's rows are (3, heads, head size).

    causal: whether a position takes none that come after it.
    """

    def __init__(self, hidden: int, head_size: int, *, causal: bool, bias: bool = True) -> None:
        super().__init__()
        self.head_size = head_size
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.rotate = Rotate()
        self.attend = Attention(causal=causal)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, rotation: Tensor | None = None) -> Tensor:
        """Attend. The number of heads follows from the width of qkv's output. rotation: see Rotate."""
        parts = self.qkv(x).unflatten(2, (3, -1, self.head_size)).unbind(2)  # so that their gradients lie as qkv's do
        q, k, v = (part.transpose(1, 2) for part in parts)
        if rotation is not None:
            q, k = self.rotate(q, rotation), self.rotate(k, rotation)
        return self.out(self.attend(q, k, v))


class FeedForward(nn.Module):
    """It maps [B, S, h] -> wide -> [B, S, h] with GELU between. activation: gelu, or gelu_tanh, its approximation."""

    def __init__(self, hidden: int, wide: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, wide, bias=bias)
        self.gelu = gelu(activation)
        self.fc2 = nn.Linear(wide, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.gelu(x, self.fc1))


def gelu(activation: str) -> GELU:
    """Make the activation of this name."""
    return GELU("tanh" if activation == "gelu_tanh" else "none")
