"""Placements of a decoder, parameter by parameter: which layers are normal, which transposed, and how they start.

The residual stream is split over y (features) and z, data (rows), and is the same on all of x:

    projections from it, the head, the token table: normal       projections onto it: transposed
"""

from math import sqrt

from engine.grid import Axis
from engine.placement import NORMAL, TRANSPOSED, Constant, Gaussian, Placement

INITIAL_STD = 0.02


class Layout:
    """Collects the placements of a network by name, in the order in which they are added.

    Initial values are GPT-2's: a standard deviation of 0.02, for the 2 * layers projections onto the residual stream
    divided by the root of their number; biases 0, norms 1.
    """

    def __init__(self, *, hidden: int, layers: int) -> None:
        self.placements: dict[str, Placement] = {}
        self._hidden = hidden
        self._onto_std = INITIAL_STD / sqrt(2 * layers)

    def table(self, name: str, rows: int, *, sharded: bool = True) -> None:
        """Rows of features: of tokens, split over x and sharded over z, or replicated over both."""
        split = NORMAL if sharded else (None, Axis.Y)
        self._add(name, (rows, self._hidden), split, Gaussian(INITIAL_STD), sharded=sharded)

    def from_residual(self, name: str, features: tuple[int, ...], *, bias: bool) -> None:
        """A projection from the residual stream; each of the groups of features is split over x on its own."""
        parts = features if len(features) > 1 else None
        self._linear(name, sum(features), self._hidden, NORMAL, INITIAL_STD, bias=bias, parts=parts)

    def onto_residual(self, name: str, features: int, *, bias: bool) -> None:
        """A projection of so many features onto the residual stream."""
        self._linear(name, self._hidden, features, TRANSPOSED, self._onto_std, bias=bias, parts=None)

    def norm(self, name: str, *, bias: bool) -> None:
        """Of the residual stream."""
        self._add(f"{name}.weight", (self._hidden,), (Axis.Y,), Constant(1.0))
        if bias:
            self._add(f"{name}.bias", (self._hidden,), (Axis.Y,), Constant(0.0))

    def head_norm(self, name: str, features: int) -> None:
        """Of each head's features, the same for all heads and on all ranks."""
        self._add(f"{name}.weight", (features,), (None,), Constant(1.0))

    def _linear(
        self,
        name: str,
        n: int,
        k: int,
        split: tuple[Axis, Axis],
        std: float,
        *,
        bias: bool,
        parts: tuple[int, ...] | None,
    ) -> None:
        self._add(f"{name}.weight", (n, k), split, Gaussian(std), sharded=True, parts=parts)
        if bias:
            self._add(f"{name}.bias", (n,), split[:1], Constant(0.0), parts=parts)

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        split: tuple[Axis | None, ...],
        init: Gaussian | Constant,
        *,
        sharded: bool = False,
        parts: tuple[int, ...] | None = None,
    ) -> None:
        self.placements[name] = Placement(name, shape, split, sharded, init, {0: parts} if parts else {})
