"""Predict how long each of a device's matrix products takes alone, where nothing hides an error: neither another kernel
nor a collective, and no fit to the time of a batch. No torch.

The first rule was written down before any measured product was predicted by it. The device is known by its maker's
sheet and by the best rate of its square products. The one number that is fitted, the share of that rate which products
reach (Fitted.products), is for each job that which fits the other jobs' products of linear layers best, by least
squares of the logarithms (calibrate.py), without shapes that the job itself has; square products have no part in it.
The baseline gives all products one rate, fitted in the same way, as if shapes didn't count. A kernel takes KERNEL_S at
least, as on any unmeasured device. (Since then the baseline has that least time, too: 4 of the first 112 products lay
within CLOSE by it, now 8; and shapes that a job has itself are left out, which changed no count.)

On the first device that was measured small products took four times KERNEL_S and more, most of which is the host's, and
the fit gave up large products for them. So a second rule came then: the least that a kernel takes is measured, as what
the smallest product takes, which is no more predicted, and the baseline has it, too. Both are reported. What a kernel
takes of the device alone has not been measured.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from engine.result.schema import Result
from engine.simulator.bandwidth import Bandwidths
from engine.simulator.events import MatrixProduct
from engine.simulator.machine import KERNEL_S, MachineModel
from engine.validation.calibrate import PRIORS, UNFITTED, Observation, Prior, fit
from engine.validation.document import SQUARES, DeviceProducts, MeasuredProduct, MeasuredProducts, ProductRow, Rule
from systems.device import Device, devices

log = logging.getLogger(__name__)

ONE_NUMBER = {
    name: prior if name == "products" else Prior(getattr(UNFITTED, name), prior.spread, 0.0, 0.0)
    for name, prior in PRIORS.items()
}
BYTES = 2
"""Size of a product's elements, of 16 bits."""


def predict_products(measured: MeasuredProducts) -> list[DeviceProducts]:
    """Predict a device's products by the first rule, and by the second where a launch was measured.

    Raises KeyError for a device whose sheet isn't known.
    """
    found = [_predict_by_rule(measured, measured.jobs, "first", KERNEL_S)]
    if launch := measured.launch:
        rest = {job: [one for one in some if one != launch] for job, some in measured.jobs.items()}
        found.append(_predict_by_rule(measured, rest, "second", launch.time_s))
    return [one for one in found if one.rows]


def _predict_by_rule(
    measured: MeasuredProducts, jobs: Mapping[str, Sequence[MeasuredProduct]], rule: Rule, kernel_s: float
) -> DeviceProducts:
    """Predict the products of each job for which others tell the number."""
    machine = _machine(devices()[measured.device], measured.empirical_peak, kernel_s)
    one_rate = replace(machine, processors=None, memory_bytes_per_s=inf)
    layers = {job: some for job, some in jobs.items() if job != SQUARES}
    fitted, rows = {}, []
    for job, products in jobs.items():
        own = {(product.m, product.n, product.k, product.mode) for product in products}
        rest = [product for other, some in layers.items() if other != job for product in some]
        others = [product for product in rest if (product.m, product.n, product.k, product.mode) not in own]
        if not (products and others):
            continue
        log.info("products of %s on %s", job, measured.device)
        shaped, flat = (_fit_share(one, others) for one in (machine, one_rate))
        fitted[job] = shaped.fitted.products
        rows += [
            ProductRow(
                **product.model_dump(),
                job=job,
                predicted_s=_seconds(shaped, product),
                one_rate_s=_seconds(flat, product),
            )
            for product in products
        ]
    return DeviceProducts(
        device=measured.device,
        source=measured.source,
        precision=measured.precision,
        rule=rule,
        empirical_peak=measured.empirical_peak,
        kernel_s=kernel_s,
        fitted=fitted,
        rows=tuple(rows),
    )


def _machine(device: Device, peak: float, kernel_s: float) -> MachineModel:
    """Make the model of the device alone, whose links are without limit."""
    assert device.memory_bytes_per_s
    return MachineModel(
        name=device.name,
        peak_flops=peak,
        empirical_peak=peak,
        memory_bytes_per_s=device.memory_bytes_per_s.value,
        device_memory=None,
        bandwidths=Bandwidths(1, inf, inf),
        kernel_s=kernel_s,
        processors=device.processors.value if device.processors else None,
    )


def _seconds(machine: MachineModel, product: MeasuredProduct) -> float:
    return machine.compute_s(MatrixProduct(product.m, product.n, product.k, product.mode, BYTES))


def _fit_share(machine: MachineModel, products: Sequence[MeasuredProduct]) -> MachineModel:
    def observation(product: MeasuredProduct) -> Observation:
        return Observation(lambda fitted: (_seconds(machine.with_fitted(fitted), product), 0.0), product.time_s)

    return machine.with_fitted(fit([observation(product) for product in products], ONE_NUMBER).fitted)


def measured_products(results: Sequence[Result]) -> list[MeasuredProducts]:
    """Gather what `bench gemm` and `bench matmul` measured in numbers of 16 bits on devices whose sheets are known, of
    each job the newest. results: the newest is the last.
    """
    jobs: dict[tuple[str, str], dict[str, tuple[MeasuredProduct, ...]]] = defaultdict(dict)
    newest: dict[tuple[str, str], Result] = {}
    for result in results:
        device = next(iter(result.provenance.devices), "")
        if result.status != "ok" or result.dtype not in ("bf16", "fp16") or device not in devices():
            continue
        if found := tuple(_products(result)):
            jobs[device, result.dtype][_job(result)] = found
            newest[device, result.dtype] = result
    return [
        MeasuredProducts(
            device=device,
            precision="bf16" if dtype == "bf16" else "fp16",
            jobs=some,
            source=_source(newest[device, dtype]),
        )
        for (device, dtype), some in jobs.items()
    ]


def _source(result: Result) -> str:
    origin = result.provenance
    return f"{origin.end[:10]}, torch {origin.versions.get('torch', '?')}, commit {origin.git_commit}"


def _job(result: Result) -> str:
    if result.kind == "gemm":
        return SQUARES
    assert result.model is not None
    return f"{result.model.name} on {result.grid}, {result.config['batch']['micro']} at once"


def _products(result: Result) -> Iterator[MeasuredProduct]:
    """List the square products, or of each shape of a layer its three products as PyTorch multiplies."""
    if result.kind == "gemm":
        for point in result.gemm:
            if point.median_time_s is not None:
                yield _product(point.size, point.size, point.size, point.mode, point.median_time_s)
    for shape in result.tuning.shapes if result.tuning else ():
        m, n, k = shape.m, shape.n, shape.k
        of_role: Mapping[str, tuple[int, int, int]] = {
            "forward": (m, n, k),
            "input_gradient": (m, k, n),
            "weight_gradient": (k, n, m),
        }
        for way in shape.times:
            if way.own and not way.column_major:
                yield _product(*of_role[way.role], way.mode, way.median_s)


def _product(m: int, n: int, k: int, mode: str, time_s: float) -> MeasuredProduct:
    return MeasuredProduct.model_validate({"m": m, "n": n, "k": k, "mode": mode, "time_s": float(f"{time_s:.5g}")})
