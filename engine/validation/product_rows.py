"""Matrix products that were measured alone on a device, and what is predicted of each. No torch."""

from collections.abc import Sequence
from typing import Literal

from engine.result import metrics
from engine.result.matmul import ModeName
from engine.schema import Record
from systems import Dtype

SQUARES = "squares"
"""This job has the square products, by which the empirical peak is known."""
NEARLY_NOTHING = 0.1
CLOSE = 0.15
"""A prediction that is off by more is no good one: the page then has a reason, or says that none is known."""
Rule = Literal["first", "second"]
RULES: dict[Rule, str] = {
    "first": "by the rule that was fixed before anything was measured a kernel takes 4 us at least",
    "second": "by a rule that came after the first had failed a kernel takes at least what launching the smallest "
    "product took, where the host launches one upon the other",
}


class MeasuredProduct(Record):
    """A product of [m, k] by [k, n] took so many seconds, in the mode in which PyTorch multiplies there."""

    m: int
    n: int
    k: int
    mode: ModeName
    time_s: float

    @property
    def shape(self) -> tuple[int, int, int, str]:
        return self.m, self.n, self.k, self.mode

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


class MeasuredProducts(Record):
    """A device has measured products: of SQUARES, and of jobs those of a rank's linear layers, each shape once. device:
    by the whole name that PyTorch gives it.
    """

    device: str
    source: str
    precision: Dtype
    jobs: dict[str, tuple[MeasuredProduct, ...]]

    @property
    def launch(self) -> MeasuredProduct | None:
        """Return the product of the fewest flops, if nearly all that it takes is its launch."""
        smallest = min((product for some in self.jobs.values() for product in some), key=lambda product: product.flops)
        return smallest if smallest.flops / self.empirical_peak < NEARLY_NOTHING * smallest.time_s else None

    @property
    def empirical_peak(self) -> float:
        """Give the best flop/s of the square products, or of all where there are none (axonn-sc24 VI-C)."""
        every = self.jobs.get(SQUARES) or [product for some in self.jobs.values() for product in some]
        return max(product.flops / product.time_s for product in every)


class ProductRow(MeasuredProduct):
    """A measured product of a job stands beside its predicted time, and the time at one rate for all products."""

    job: str
    predicted_s: float
    one_rate_s: float

    @property
    def error(self) -> float:
        return metrics.prediction_error(self.predicted_s, self.time_s)

    @property
    def one_rate_error(self) -> float:
        return metrics.prediction_error(self.one_rate_s, self.time_s)


class DeviceProducts(Record):
    """A device's measured products were predicted, each job's by the other jobs. kernel_s: the least that a kernel
    takes by this rule. fitted: by job, the share of the empirical peak that the other jobs gave.
    """

    device: str
    source: str
    precision: Dtype
    rule: Rule
    empirical_peak: float
    kernel_s: float
    fitted: dict[str, float]
    rows: tuple[ProductRow, ...]

    def of(self, job: str) -> list[ProductRow]:
        return [row for row in self.rows if row.job == job]

    @property
    def long(self) -> list[ProductRow]:
        """List those that take more than twice what a kernel does, so that launches don't decide."""
        return [row for row in self.rows if row.time_s > 2 * self.kernel_s]


def close(rows: Sequence[ProductRow], *, at_one_rate: bool = False) -> int:
    """Count the rows that are predicted within CLOSE."""
    return sum(abs(row.one_rate_error if at_one_rate else row.error) <= CLOSE for row in rows)
