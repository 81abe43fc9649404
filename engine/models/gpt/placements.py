"""Which layer of a network is normal and which is transposed, and where heads split: the plan of parallelize.

The residual stream is split over y (features) and z, data (rows), and is the same on all of x:

    qkv, fc1, head, token table: normal       attention output, fc2: transposed
"""

from math import sqrt

from engine.grid import Axis
from engine.models.gpt.config import GPTConfig
from engine.placement import NORMAL, TRANSPOSED, Constant, Normal, Placement

INITIAL_STD = 0.02


def gpt_placements(config: GPTConfig) -> dict[str, Placement]:
    """The placement of every parameter of the serial GPT by its name, in the model's order.

    Initial values are GPT-2's: normal, 0.02, and the two projections onto the residual stream divided by the root of
    their number.
    """
    h, found = config.hidden, {}

    def add(
        name: str,
        shape: tuple[int, ...],
        split: tuple[Axis | None, ...],
        init: Normal | Constant,
        *,
        sharded: bool = False,
        groups: int = 1,
    ) -> None:
        found[name] = Placement(name, shape, split, sharded, init, groups)

    def linear(name: str, n: int, k: int, split: tuple[Axis, Axis], *, std: float, groups: int = 1) -> None:
        add(f"{name}.weight", (n, k), split, Normal(std), sharded=True, groups=groups)
        if config.bias:
            add(f"{name}.bias", (n,), split[:1], Constant(0.0), groups=groups)

    def norm(name: str) -> None:
        add(f"{name}.weight", (h,), (Axis.Y,), Constant(1.0))
        if config.norm == "layernorm":
            add(f"{name}.bias", (h,), (Axis.Y,), Constant(0.0))

    add("tokens.weight", (config.vocabulary, h), NORMAL, Normal(INITIAL_STD), sharded=True)
    add("positions.weight", (config.sequence, h), (None, Axis.Y), Normal(INITIAL_STD))
    onto_residual = INITIAL_STD / sqrt(2 * config.layers)
    for i in range(config.layers):
        block = f"blocks.{i}"
        norm(f"{block}.norm1")
        linear(f"{block}.attention.qkv", 3 * h, h, NORMAL, std=INITIAL_STD, groups=3)
        linear(f"{block}.attention.out", h, h, TRANSPOSED, std=onto_residual)
        norm(f"{block}.norm2")
        linear(f"{block}.feed_forward.fc1", 4 * h, h, NORMAL, std=INITIAL_STD)
        linear(f"{block}.feed_forward.fc2", h, 4 * h, TRANSPOSED, std=onto_residual)
    norm("norm")
    if not config.tied:
        add("head.weight", (config.vocabulary, h), NORMAL, Normal(INITIAL_STD), sharded=True)
    return found
