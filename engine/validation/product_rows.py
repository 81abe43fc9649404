"""Matrix products that were measured alone on a device, and what is predicted of each. No torch."""

from engine.result import metrics
from engine.result.matmul import ModeName
from engine.schema import Record
from systems import Dtype

SQUARES = "squares"
"""This job has the square products, by which the empirical peak is known."""


class MeasuredProduct(Record):
    """A product of [m, k] by [k, n] took so many seconds, in the mode in which PyTorch multiplies there."""

    m: int
    n: int
    k: int
    mode: ModeName
    time_s: float

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
    def smallest(self) -> MeasuredProduct:
        """Return the product of the fewest flops: it takes what launching it takes."""
        return min((product for some in self.jobs.values() for product in some), key=lambda product: product.flops)

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
    takes. fitted: by job, the share of the empirical peak that the other jobs gave.
    """

    device: str
    source: str
    precision: Dtype
    empirical_peak: float
    kernel_s: float
    fitted: dict[str, float]
    rows: tuple[ProductRow, ...]

    def of(self, job: str) -> list[ProductRow]:
        return [row for row in self.rows if row.job == job]
