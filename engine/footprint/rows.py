"""The rows that a rank works on at once turn features into bytes. No torch in it."""

from dataclasses import dataclass
from math import prod

from engine.grid import INNER, STREAM, Grid
from engine.models.architecture import Architecture
from engine.models.network import Carried
from engine.models.operations import Kept, Linear


@dataclass(frozen=True, slots=True)
class Rows:
    """They are samples, perhaps a fraction, of one model on one grid. compute, master: bytes of an element of
    activations, and of statistics and losses.
    """

    model: Architecture
    grid: Grid
    samples: float
    compute: int
    master: int
    on_cpu: bool

    @property
    def narrow(self) -> bool:
        """Say whether activations take fewer bytes than statistics."""
        return self.compute != self.master

    @property
    def several(self) -> bool:
        """Say whether they are of more than one sample."""
        return self.samples > 1

    def features(self, count: float, ranks: int = 1) -> float:
        """Count the bytes of so many numbers of a sample, which so many ranks split."""
        return self.samples * self.compute * count / ranks

    def carried(self, carried: Carried) -> float:
        """Count those of what one block gives to the next."""
        return self.features(prod(carried.shape), self.grid[STREAM])

    @property
    def stream(self) -> float:
        """Count those of the residual stream at the network's ends."""
        return self.features(self.model.sequence * self.model.hidden, self.grid[STREAM])

    @property
    def wide_stream(self) -> float:
        """Count those of the same in the master dtype."""
        return self.stream * self.master / self.compute

    def kept(self, of_sample: Kept) -> float:
        """Count the bytes of what is kept of a sample."""
        on_stream = of_sample.over_stream + of_sample.streams * self.model.hidden
        split = self.features(of_sample.over_inner, self.grid[INNER]) + self.features(on_stream, self.grid[STREAM])
        return split + of_sample.angles * self.master

    def made_by_norm(self, kind: str) -> float:
        """Count what a norm's backward makes: a kernel the gradient, the engine's own norms two products, too.

        The products are in the master dtype. PyTorch has kernels of both norms on a GPU, on a processor of LayerNorm
        alone (layers/norm.py).
        """
        if self.grid[STREAM] > 1 or (kind == "rmsnorm" and self.on_cpu):
            return 2 * self.wide_stream + (self.stream if self.narrow else 0.0)
        return self.stream

    def taken_and_given(self, product: Linear, tokens: int) -> tuple[float, float]:
        """Count the bytes of a product's input, and of its output."""
        n, k = product.ranks(self.grid)
        return self.features(product.input_tokens(tokens) * product.k, k), self.features(tokens * product.n, n)
