"""`bench gemm`, `matmul`, `memory`, `latency` and `startup`: what one device does."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from engine.cli.place import take_place
from engine.cli.told import Json, columns, tell
from engine.errors import RunError, UsageError
from engine.grid import Grid
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.options import GRID, Bytes, Device, Labels, Out, Seconds, word
from engine.result import metrics
from engine.timeouts import Timeouts
from engine.training.config import MODEL, CheckpointActivations, PrecisionOption

if TYPE_CHECKING:
    from engine.result.matmul import TunedShape
    from engine.result.schema import Result


def gemm(
    *,
    dtype: Annotated[Literal["bf16", "fp32", "tf32", "fp64"], Parameter(help="of the matrices")] = "bf16",
    sizes: Annotated[str, Parameter(help="LOW..HIGH doubles, or a comma list")] = "1024..65536",
    device: Device = "auto",
    time_budget: Annotated[Seconds, Parameter(help="sizes that would take longer are skipped")] = 120.0,
    timeouts: Timeouts = Timeouts(),
    labels: Labels = (),
    json: Json = False,
    out: Out = Path("results/gemm.json"),
) -> int:
    """Measure the empirical peak: square matrix multiplications, on all ranks at once where a launcher starts several.

    On processors a rank takes as many threads as OMP_NUM_THREADS says, or all cores.
    """
    with loading():
        from engine.bench.gemm import run_gemm

    launch = take_place(out)
    result = run_gemm(
        launch,
        dtype=dtype,
        sizes=sizes,
        device=device,
        time_budget_s=time_budget,
        timeouts=timeouts,
        labels=dict(labels),
        out=out,
    )
    rows = [
        (f"{point.size} x {point.size}", f"{point.flops_per_s / 1e12:.4g}")
        for point in result.gemm
        if point.flops_per_s is not None
    ]
    return _told(result, out, launch.rank, columns((f"{dtype} matrices", "Tflop/s"), rows), as_json=json)


def memory(
    *,
    array_size: Annotated[Bytes | None, Parameter(help="of each of three; by default four times the cache")] = None,
    repeats: Annotated[int, Parameter(help="of each kernel")] = 10,
    device: Device = "auto",
    time_budget: Annotated[Seconds, Parameter(help="fewer repeats if they would take longer")] = 60.0,
    timeouts: Timeouts = Timeouts(),
    labels: Labels = (),
    json: Json = False,
    out: Out = Path("results/memory.json"),
) -> int:
    """Measure the memory bandwidth: STREAM's copy, scale, add and triad, on all ranks at once."""
    with loading():
        from engine.bench.memory import run_memory

    launch = take_place(out)
    result = run_memory(
        launch,
        device=device,
        array_bytes=array_size,
        repeats=repeats,
        time_budget_s=time_budget,
        timeouts=timeouts,
        labels=dict(labels),
        out=out,
    )
    kernels = result.stream.kernels if result.stream else ()
    rows = [(kernel.name, f"{kernel.best_bytes_per_s / 1e9:.2f}") for kernel in kernels]
    return _told(result, out, launch.rank, columns(("kernel", "GB/s"), rows), as_json=json)


def latency(
    *,
    samples: Annotated[int, Parameter(help="of each way to launch")] = 1000,
    device: Device = "auto",
    timeouts: Timeouts = Timeouts(),
    labels: Labels = (),
    json: Json = False,
    out: Out = Path("results/latency.json"),
) -> int:
    """Measure the launch latency: what one tiny operator costs, on all ranks at once."""
    with loading():
        from engine.bench.latency import run_latency

    launch = take_place(out)
    result = run_latency(launch, device=device, samples=samples, timeouts=timeouts, labels=dict(labels), out=out)
    rows = [(launched.name, f"{launched.median_s * 1e6:.2f}") for launched in result.launches]
    return _told(result, out, launch.rank, columns(("launch", "µs"), rows), as_json=json)


def matmul(
    *,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="of the job, one of whose ranks this is")] = Grid(),
    micro_batch: Annotated[int, Parameter(help="sequences that a rank takes at once")] = 1,
    micro_batches: Annotated[int, Parameter(help="of a step: from the second on gradients are added up")] = 1,
    precision: PrecisionOption = "fp32",
    checkpoint_activations: CheckpointActivations = False,
    twice: Annotated[bool, Parameter(help="time all ways once more, to see whether the choice holds")] = False,
    device: Device = "auto",
    timeouts: Timeouts = Timeouts(),
    labels: Labels = (),
    json: Json = False,
    out: Out = Path("results/matmul.json"),
) -> int:
    """Time the matrix products of one rank of a job in every mode, and say which train --tune-matmul would take.

    One device stands for a rank of any grid; under a launcher all time the same at once. Whatever was timed before is
    timed again, and kept for jobs that train.

      python -m engine bench matmul --model gpt-5b --grid 4x1x2x8 --micro-batch 2 --precision bf16
    """
    with loading():
        from engine.bench.matmul import Asked, run_matmul

    if micro_batch < 1:
        raise UsageError(f"--micro-batch is at least 1, but {micro_batch} was given.")
    if micro_batches < 1:
        raise UsageError(f"--micro-batches is at least 1, but {micro_batches} was given.")
    launch = take_place(out)
    asked = Asked(
        model=model.resolve(),
        grid=grid,
        sequences=micro_batch,
        micro_batches=micro_batches,
        precision=precision,
        recompute=checkpoint_activations,
        twice=twice,
    )
    result = run_matmul(launch, asked, device, timeouts, dict(labels), out)
    if result.reason is not None:
        raise RunError(result.reason)
    if launch.rank == 0:
        assert result.tuning is not None
        tell(f"{table_of_choices(result.tuning.shapes)}\n{out}", out, as_json=json)
    return 0


def startup(
    *,
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="the default has 32,768 ranks")] = Grid(8, 4, 16, 64),
    model: Annotated[str | None, Parameter(help="of which more is measured, such as gpt-320b")] = None,
    json: Json = False,
) -> int:
    """Measure what Grid and Comm, and a model's initial values and plan of a checkpoint, cost a rank of a large job."""
    import torch

    from engine.bench import checkpoint, initial
    from engine.bench.startup import measure

    network = ModelChoice(model=model).resolve() if model else None
    found = measure(grid)
    words, record = f"{grid.size:,} ranks, {found}", {"ranks": grid.size, **asdict(found)}
    if network is not None:
        plan = checkpoint.measure(network, grid)
        drawing = initial.measure(initial.largest(network, grid), grid, torch.device("cpu"))
        words = f"{words}\n{network.name}, {plan}\n{network.name}, {drawing}"
        record |= asdict(plan) | asdict(drawing)
    tell(words, record, as_json=json)
    return 0


def table_of_choices(shapes: "Sequence[TunedShape]") -> str:
    """A table: of each shape the time of a layer's products in a micro-batch, and what tuning gains."""
    rows = []
    for shape in shapes:
        words = ["-", "-", "-"]
        if shape.own_s is not None and shape.chosen_s is not None:
            gain = metrics.speed_up(shape.own_s, shape.chosen_s)
            words = [f"{1e3 * shape.own_s:.3f}", f"{1e3 * shape.chosen_s:.3f}", f"{gain:.3f}"]
        rows.append([f"{shape.layer} and {shape.layers - 1} more", str(shape.m), str(shape.n), str(shape.k), *words])
    return columns(["layers", "m", "n", "k", "PyTorch's own, ms", "chosen, ms", "times as fast"], rows)


def _told(result: "Result", out: Path, rank: int, found: str, *, as_json: bool) -> int:
    """Raises RunError for a failed result."""
    if result.status != "ok":
        raise RunError(result.reason or "Nothing could be measured.")
    if rank == 0:
        each = f", on each of {result.ranks} ranks at once" if result.ranks > 1 else ""
        tell(f"{found}\n{out}{each}", out, as_json=as_json)
    return 0
