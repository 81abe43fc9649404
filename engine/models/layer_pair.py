"""Two linear layers of a block, without biases: what they move and hold in a tensor mode, by closed forms. No torch."""

from dataclasses import dataclass

from engine.grid import Grid
from engine.models.network import Carried, Network, Section
from engine.models.operations import FROM_STREAM, ONTO_STREAM, Linear
from engine.tensor_mode import Side, TensorMode


@dataclass(frozen=True, slots=True)
class LayerPair:
    """Product from the residual stream and one back onto it: [batch, sequence, hidden] to inner features and back."""

    batch: int
    """sequences of all ranks"""
    sequence: int
    hidden: int
    inner: int

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def linears(self) -> tuple[Linear, Linear]:
        first = Linear("first", self.inner, self.hidden, FROM_STREAM)
        return first, Linear("second", self.hidden, self.inner, ONTO_STREAM)

    @property
    def network(self) -> Network:
        """Network of nothing else."""
        return Network((Section(self.linears),), (Carried((self.sequence, self.hidden), dim=1),))

    def moved_elements(self, mode: TensorMode, grid: Grid) -> int:
        """Count what all ranks send in a step, by rings and pieces that follow one another.

        A square sends panels three times (Xu et al. 2021). Else outputs are summed over the axis that splits the
        inputs' features, and gradients of inputs over that of the outputs' (axonn-sc24, Algorithm 1). Weights and their
        gradients go over z and data.
        """
        return sum(self._moved(linear, mode, grid) for linear in self.linears)

    def _moved(self, linear: Linear, mode: TensorMode, grid: Grid) -> int:
        taken, weight, given = self.tokens * linear.k, linear.n * linear.k, self.tokens * linear.n
        over_rows = 2 * (grid.batch_split - 1) * weight
        if mode.square:
            panels = min(taken, given) if mode.by_size else taken
            return 3 * (grid[mode.stream.features] - 1) * (panels + grid.batch_split * weight) + over_rows
        of_outputs, of_inputs = (mode.axis(side) for side in linear.sides)
        assert of_outputs is not None
        assert of_inputs is not None
        return 2 * ((grid[of_inputs] - 1) * given + (grid[of_outputs] - 1) * taken) + over_rows

    def held_elements(self, mode: TensorMode, grid: Grid) -> int:
        """Count what a rank holds once the forward is over: its input and output, what the backward takes, and its
        weights and their gradients, with the weights that it has gathered over z.
        """
        stream, inner = (self.tokens // grid.batch_split * features for features in (self.hidden, self.inner))
        own, inside = stream // mode.parts(Side.STREAM, grid), inner // mode.parts(Side.INNER, grid)
        gathered = 0
        if mode.gathers:
            inside *= grid[mode.stream.features]
            gathered = own * grid[mode.inner.features] if grid[mode.inner.features] > 1 else 0
        weights = sum(linear.n * linear.k for linear in self.linears)
        gathered += weights // grid.plane if grid.shards > 1 else 0
        return 2 * own + inside + gathered + 2 * weights // (grid.plane * grid.shards)
