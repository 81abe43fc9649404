"""`par4d calibrate` measures what a machine's links and devices reach, and fits the performance model's numbers.

All tests of the tag run one after the other, by ReFrame; the model is fitted to their results, and the system's file of
what was measured is written anew.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import TypeVar, cast

import systems
from engine.errors import RunError, UsageError
from engine.loading import loading
from engine.result import metrics
from engine.result.provenance import processor, processor_name
from engine.result.schema import Result, read
from engine.result.schema.bench import GemmPoint
from engine.simulator.machine import Fitted, MachineModel
from engine.validation.calibrate import as_data
from engine.validation.measured import measured_in, row_name
from suites.base import feasible, series
from suites.base.feasible import check_here
from suites.base.kept import links_of, short
from suites.base.running import run_reframe
from suites.base.series import CALIBRATION
from systems import Cores, Dtype, Fact, Measured, Performance, System, store

ROOT = Path(__file__).parents[1]
SUITES = ("bandwidth", "peak", "calibration")

_Found = TypeVar("_Found")


def calibrated(name: str | None, *, timeout_s: float, results: Path | None = None) -> tuple[Path, Measured]:
    """Calibrate a system; returns its file, and what that says. Results are kept below results/, for the report too.

    results: a folder with what was measured before. Raises UsageError where that isn't enough, or where nothing can be
    measured from here; RunError where a test failed, or took longer than timeout_s with its time in a queue.
    """
    system = systems.named(name)
    if results is None:
        check_here(system, "calibrated")
        check_trainings(system)
        results = Path("results", f"{CALIBRATION}-{system.name}-{datetime.now():%Y%m%dT%H%M%S}").absolute()
        with _writing(results):
            results.mkdir(parents=True)
        _measure(system, results, timeout_s)
    found = calibration(system, results)
    with _writing(store.FOLDER):
        return store.keep(system.name, found), found


def check_trainings(system: System) -> None:
    """Raise UsageError if no partition can run one of the trainings that the numbers are fitted to."""
    for point in series.points(series.CALIBRATION, system.name):
        job = feasible.Job(
            ranks=point.devices,
            ranks_of_a_node=feasible.per_node(system, point.devices),
            device=system.device.kind,
            number_format=point.series.precision,
        )
        reasons = [feasible.obstacle(system, partition, job) for partition in system.partitions]
        if all(reasons):
            raise UsageError(f"{system.name} can't be calibrated by the training {point}: {reasons[0]}.")


def numbers(measured: Measured) -> dict[str, str]:
    """Return the fitted numbers by name, with their deviations."""
    assert measured.performance is not None
    found = measured.performance
    known: dict[str, str] = {name: f" ± {deviation:.2g}" for name, deviation in found.deviations.items()}
    names = ("products", "link", "fading", "slowdown", "spread")
    said = {name: f"{getattr(found, name):.4g}{known.get(name, '')}" for name in names}
    return said | {"fitted to": ", ".join(found.fitted_to)}


def calibration(system: System, folder: Path) -> Measured:
    """Say what the newest results below a folder say of a system. Raises UsageError for one that is missing."""
    found = [read(path) for path in folder.rglob("result.json")]
    own = [result for result in found if result.status == "ok" and result.labels.get("system") == system.name]
    every = sorted(own, key=lambda result: result.provenance.end)

    def the(what: str, found: Sequence[_Found]) -> _Found:
        if not found:
            raise UsageError(f"Below {folder} lies no result of {what}: run par4d calibrate --system {system.name}.")
        return found[-1]

    jobs = [job for job in measured_in(folder, CALIBRATION) if job.system == system.name]
    axes, kernels = (the(f"{CALIBRATION}, {name}", [j for j in jobs if j.name == name]) for name in ("axes", "kernels"))
    trained = the(CALIBRATION, [r for r in every if r.labels.get("series") == "axes"])
    alike = [r for r in every if set(r.provenance.devices) <= set(trained.provenance.devices)]
    at_once = [r for r in alike if r.ranks == (1 if system.device.kind == "cuda" else axes.ranks)]
    memory = the("bench memory", [r for r in at_once if r.stream])
    gemm = the("bench gemm", [r for r in at_once if r.gemm and r.dtype == axes.precision])
    links = links_of(the("bench collectives", [r for r in alike if r.links and not r.links.broadcasts]))
    with loading():
        from engine.validation.validate import calibrate, kernel_s

    own_processor = processor() if links.source.device == processor_name() else None
    source = links.source.model_copy(update={"processor": own_processor})
    known = links.model_copy(update={"performance": _hardware(trained, memory, gemm), "source": source})
    least = Fact(
        value=short(kernel_s(MachineModel.of(system, axes.precision, known), kernels)), source=f"train {kernels.model}"
    )
    known = _with(known, kernel_s=least)
    fitting = [axes, *(job for job in jobs if job.name == "products")]
    estimate = calibrate(MachineModel.of(system, axes.precision, known), fitting)
    rows = tuple(row_name(job.model, grid) for job in fitting for grid in job.fitted)
    return _with(known, fitted_to=rows, **as_data(estimate.fitted, estimate))


def _hardware(trained: Result, memory: Result, gemm: Result) -> Performance:
    """Return the numbers that aren't fitted. If a system's own file has peaks, as of accelerators, those count."""
    assert memory.stream is not None
    reached = {point.size: short(point.flops_per_s) for point in gemm.gemm if point.flops_per_s}
    kernels = memory.stream.kernels
    precision = cast("Dtype", gemm.dtype)
    machine = trained.breakdown.machine if trained.breakdown else None
    return Performance(
        **asdict(Fitted()),
        fitted_to=("nothing yet",),
        peak_flops={precision: Fact(value=max(reached.values()), source=_source("bench gemm", gemm))},
        memory_bytes_per_s=Fact(
            value=short(mean(kernel.median_bytes_per_s for kernel in kernels)), source=_source("bench memory", memory)
        ),
        modes={point.mode: _of_nn(point, gemm) for point in gemm.gemm_modes},
        by_size={precision: reached},
        shared=Cores(ranks=machine.ranks, cores=machine.cores / machine.threads_per_rank) if machine else None,
    )


def _of_nn(point: GemmPoint, gemm: Result) -> Fact:
    """Return the rate of products in a mode by that with both factors row by row."""
    assert point.flops_per_s
    (nn,) = (other.flops_per_s for other in gemm.gemm_modes if other.mode == "NN" and other.flops_per_s)
    source = f"{_source('bench gemm', gemm)}, {point.size} x {point.size}"
    return Fact(value=short(metrics.mode_rate(point.flops_per_s, nn)), source=source)


def _source(command: str, result: Result) -> str:
    return f"{command}, {result.ranks} rank{'s' if result.ranks > 1 else ''} at once"


def _with(measured: Measured, **known: object) -> Measured:
    assert measured.performance is not None
    return measured.model_copy(update={"performance": measured.performance.model_copy(update=known)})


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise RunError if something there can't be written."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{error.filename or path} can't be written: {error.strerror}.") from None


def _measure(system: System, folder: Path, timeout_s: float) -> None:
    """Run the tests; ReFrame's words go to standard error. Raises RunError."""
    words = ["--system", system.name, "--run", "--tag", CALIBRATION, "--exec-policy", "serial", "--prefix", str(folder)]
    words += ["--setvar", "Bandwidth.keep=no", "--setvar", "compare=no"]  # what is slower than ever is measured, too
    for suite in SUITES:
        words += ["--checkpath", str(ROOT / "suites" / f"{suite}.py")]
    code = run_reframe(words, folder, timeout_s, sys.stderr)
    if code is None:
        raise RunError(
            f"The tests took longer than {timeout_s:g} s: give them more by --timeout, or wait for a shorter queue."
        )
    if code:
        raise RunError("A test failed, for the reason that stands above: nothing was kept.")
