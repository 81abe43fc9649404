"""Activations of one rank in bytes, the logits among them. No torch in it.

A block's features are the network's to tell (models/architecture.py, KeptFeatures); what the engine's own layers keep
and make of them is told here, each beside the layer that it is of. A rank works on `rows` tokens at once.
"""

from engine.grid import Grid
from engine.layers.chunk import CHUNK_BYTES
from engine.models.architecture import Architecture, KeptFeatures


class Activations:
    """On one grid. compute, master: bytes of an element of activations, and of statistics and losses.

    Bytes: over_x, a feature that x splits; stream, the residual stream, of which y splits the features, as it is a
    block's input or the gradient of that; wide_stream, the same in the master dtype.
    """

    def __init__(
        self,
        model: Architecture,
        features: KeptFeatures,
        grid: Grid,
        rows: float,
        compute: int,
        master: int,
        device: str,
        *,
        recomputed: bool,
    ) -> None:
        self._model, self._features, self._grid, self._rows = model, features, grid, rows
        self._master, self._on_cpu, self._recomputed = master, device == "cpu", recomputed
        self._narrow = compute != master
        self._chunk = CHUNK_BYTES[device]
        self.over_x = rows * compute / grid.x
        self.stream = rows * compute * model.hidden / grid.y
        self.wide_stream = self.stream * master / compute

    def kept(self, blocks: int) -> float:
        """What these first blocks keep for the backward: of one that is recomputed its input alone."""
        return blocks * (self.stream if self._recomputed else self.kept_of_block())

    def kept_of_block(self) -> float:
        """What its operations save, its input among it, which the first norm keeps."""
        products = self._features.over_x * self.over_x + self._features.over_y * self.stream / self._model.hidden
        return products + 2 * self.stream + self._features.angles * self._master

    def recomputed_of_block(self) -> float:
        """What a block has more of once it is recomputed."""
        if not self._recomputed:
            return 0.0
        return self.kept_of_block() - self.stream

    def made_by_norm(self) -> float:
        """In its backward, of a kernel the gradient; of the engine's own norms products in the master dtype, too.

        PyTorch has kernels of both norms on a GPU, of LayerNorm alone on a processor (layers/norm.py).
        """
        if self._grid.y > 1 or (self._features.norm == "rmsnorm" and self._on_cpu):
            return 2 * self.wide_stream + (self.stream if self._narrow else 0.0)
        return self.stream

    def made_by_table(self) -> float:
        """In its backward, a gradient among it: zeros for other ranks' tokens in a copy, and a cast to sum them in."""
        copies = 2 if self._grid.x > 1 else 1
        return copies * self.stream + (self.wide_stream if self._narrow else 0.0)

    def logits(self) -> float:
        """The one copy, which becomes their gradient in place."""
        return self._model.vocabulary * self.over_x

    def made_by_loss(self) -> float:
        """Some rows at a time, never below fp32 (layers/loss.py); a processor casts them first."""
        row = self._model.vocabulary / self._grid.x * self._master
        rows = min(self._rows, max(1, self._chunk // row))
        return rows * row * (2 if self._on_cpu and self._narrow else 1)
