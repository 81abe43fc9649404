"""The tuner makes one choice for all ranks, from the cache or timed now (axonn-sc24 V-C)."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch

from engine.comm.funnel import Comm
from engine.layers.matmul import PLAIN, Kernels, Mode, Role
from engine.precision import Precision
from engine.progress import RENEWED
from engine.result import metrics, provenance
from engine.result.judges import choices
from engine.result.schema.tuning import ModeTime, TunedShape, Tuning
from engine.tuning.cache import Table, cache_file, key, load, save
from engine.tuning.choice import Times, choose, chosen, fastest, seconds_of
from engine.tuning.rate import rate
from engine.tuning.shapes import Products
from engine.tuning.timing import GemmVariant, gemm_variants, time_shape

log = logging.getLogger(__name__)

BUDGET_S = {"cpu": 30.0, "cuda": 6.0}
"""All shapes together take so long, as far as the fewest rounds allow it."""
LONGER = 4
"""A second timing takes so many times its budget's rounds, at most, until it shows whether a choice is fast enough."""
MODES = (None, *Mode)


def tune(
    found: Sequence[Products], dtype: str, comm: Comm, *, force: bool = False
) -> tuple[dict[str, Kernels], Tuning]:
    """Choose how each layer multiplies, by its name; give what that was chosen by, too. Collective; the same choice on
    all ranks.

    dtype: of the products, by its name. force: time again what is in the cache.
    """
    start = time.perf_counter()
    file, table = _kept(comm) if comm.rank == 0 else (None, None)
    kept = {key(shape): shape for shape in table.shapes} if table is not None and not force else {}
    shapes = [_with_layers(kept.get(key(new), new), new) for new in (_untimed(products, dtype) for products in found)]
    kernels = _agreed(comm, [_kernels(shape) if key(shape) in kept else None for shape in shapes])
    missing = [index for index, of in enumerate(kernels) if of is None]
    for number, index in enumerate(missing, 1):
        products, shape = found[index], shapes[index]
        log.info("tuning %d/%d  %s", number, len(missing), describe(shape), extra=RENEWED)
        times, kernels[index] = _choose(products, dtype, comm, BUDGET_S[comm.device.type] / len(missing))
        shapes[index] = _timed(shape, times, kernels[index] or PLAIN, fastest(times, products.forwards))
        log.info("%s", describe(shapes[index]))
        if table is not None and shapes[index].times:
            table = save(file, table, shapes[index])
    chosen_by_layer = {
        layer: of or PLAIN for products, of in zip(found, kernels, strict=True) for layer in products.layers
    }
    return chosen_by_layer, Tuning(time_s=time.perf_counter() - start, timed=len(missing), shapes=tuple(shapes))


def _choose(products: Products, dtype: str, comm: Comm, budget_s: float) -> tuple[Times, Kernels]:
    """Time all ways in turns, then once more what won and what it won against: of so many ways one would win by chance,
    and the best of them looks better than it is. What was timed twice has the second times.
    """
    ways = _ways(products, dtype, comm)
    times = time_shape(products, Precision.parse(dtype), comm, ways, budget_s=budget_s / 2)
    kernels = choose(times, products.forwards)
    if kernels != PLAIN:
        ways = [way for way in times if chosen(way, kernels) or way.own]
        again = time_shape(
            products, Precision.parse(dtype), comm, ways, budget_s=budget_s / 2, rounds=len(next(iter(times.values())))
        )
        kernels = choose(again, products.forwards)
        times |= again
    return times, kernels


def _ways(products: Products, dtype: str, comm: Comm) -> list[GemmVariant]:
    return gemm_variants(Precision.parse(dtype).compute, comm.device, movable=products.movable)


def time_again(tuning: Tuning, found: Sequence[Products], dtype: str, comm: Comm) -> Tuning:
    """Judge the choice of a tuning in a second timing of all ways. Collective.

    Where that doesn't tell whether the choice is fast enough, it goes on to twice and LONGER times as many rounds.
    """
    again = []
    for products, shape in zip(found, tuning.shapes, strict=True):
        log.info("timing once more  %s", describe(shape), extra=RENEWED)
        ways, budget_s = _ways(products, dtype, comm), BUDGET_S[comm.device.type] / len(found)
        kernels, first_fastest = _kernels(shape), _fastest(shape)
        times: Times = time_shape(products, Precision.parse(dtype), comm, ways, budget_s=budget_s)
        most = LONGER * _rounds(times)
        timed = _timed(shape, times, kernels, first_fastest)
        while _undecided(timed) and _rounds(times) < most:
            more = time_shape(
                products, Precision.parse(dtype), comm, list(times), budget_s=budget_s, rounds=_rounds(times)
            )
            if not more:
                break
            times = {way: [*times[way], *of] for way, of in more.items()}
            timed = _timed(shape, times, kernels, first_fastest)
        again.append(timed)
    return tuning.model_copy(update={"again": tuple(again)})


def _rounds(times: Times) -> int:
    return len(next(iter(times.values()), ()))


def _undecided(shape: TunedShape) -> bool:
    return "undecided" in (choices.by_own(shape).outcome, choices.by_fastest(shape).outcome)


def describe(shape: TunedShape) -> str:
    """Write one line for a person who waits."""
    layers = shape.layer if shape.layers == 1 else f"{shape.layer} and {shape.layers - 1} more"
    size = f"{shape.m} x {shape.k} by {shape.k} x {shape.n}  {layers}"
    if shape.own_s is None or shape.chosen_s is None:
        return size
    modes = {"O": shape.forward, "dI": shape.input_gradient, "dW": shape.weight_gradient}
    changed = [f"{name} as {mode}" for name, mode in modes.items() if mode is not None]
    if shape.column_major:
        changed.append("stored by columns")
    gained = metrics.speed_up(shape.own_s, shape.chosen_s)
    return f"{size}: {', '.join(changed)}, {gained:.2f} x as fast" if changed else f"{size}: as it is"


def _kept(comm: Comm) -> tuple[Path | None, Table]:
    """Give the file in which this rank's machine keeps its table, and the table."""
    machine = _machine(comm)
    file = cache_file(machine)
    return file, load(file, Table(machine=machine, flops_per_s=rate(comm.device)))


def _machine(comm: Comm) -> dict[str, str]:
    """Describe what times depend on besides shapes; where ranks share processors, how many there are."""
    device = provenance.processor() if comm.device.type == "cpu" else provenance.device_name(comm.device)
    found = {"device": device, "torch": torch.__version__}
    found |= {name: str(version) for name in ("cuda", "hip") if (version := getattr(torch.version, name, None))}
    if comm.device.type == "cpu":
        found |= {"threads": str(torch.get_num_threads()), "ranks": str(comm.grid.size)}
    return found


def _untimed(products: Products, dtype: str) -> TunedShape:
    return TunedShape(
        **asdict(products.shape),
        dtype=dtype,
        layers=len(products.layers),
        layer=products.layers[0],
        forwards=products.forwards,
        movable=products.movable,
        bias=products.bias,
        accumulates=products.accumulates,
        widened=products.widened,
    )


def _with_layers(shape: TunedShape, new: TunedShape) -> TunedShape:
    """Give the timed shape the layers of this model: it may have been timed for another's."""
    return shape.model_copy(update={"layers": new.layers, "layer": new.layer})


def _kernels(shape: TunedShape) -> Kernels:
    modes = [mode and Mode(mode) for mode in (shape.forward, shape.input_gradient, shape.weight_gradient)]
    return Kernels(shape.column_major, *modes)


def _fastest(shape: TunedShape) -> Kernels | None:
    """Give the ways that were fastest when the shape was first timed, if that was kept."""
    ways = {way.role: way for way in shape.times if way.fastest}
    if not ways:
        return None
    modes = [Mode(ways[role.value].mode) for role in Role]
    return Kernels(ways["forward"].column_major, *modes)


def _timed(shape: TunedShape, times: Times, kernels: Kernels, first_fastest: Kernels | None) -> TunedShape:
    if not times:
        return shape.model_copy(update={"own_s": None, "chosen_s": None, "best_s": None, "times": ()})
    rows = tuple(
        ModeTime(
            role=way.role.value,
            column_major=way.column_major,
            mode=way.mode.value,
            own=way.own,
            median_s=median(of),
            low_s=min(of),
            high_s=max(of),
            flops_per_s=metrics.product_rate(shape.m, shape.n, shape.k, median(of)),
            rounds=len(of),
            chosen=chosen(way, kernels),
            fastest=first_fastest is not None and chosen(way, first_fastest),
            by_round_s=tuple(of),
        )
        for way, of in times.items()
    )
    seconds = {
        name: median(of) if (of := seconds_of(times, those, shape.forwards)) else None
        for name, those in {"own_s": PLAIN, "chosen_s": kernels, "best_s": first_fastest}.items()
    }
    return shape.model_copy(update=asdict(kernels) | seconds | {"times": rows})


def _agreed(comm: Comm, known: Sequence[Kernels | None]) -> list[Kernels | None]:
    """Give every rank what rank 0 knows; None for what it doesn't. Collective."""
    rows = [
        [0] * 5 if of is None or comm.rank else [1, of.column_major, *(MODES.index(of.mode(role)) for role in Role)]
        for of in known
    ]
    numbers = torch.tensor(rows, dtype=torch.int64, device=comm.device).flatten()
    comm.sum(numbers)
    return [
        Kernels(bool(stored), *(MODES[mode] for mode in modes)) if is_known else None
        for is_known, stored, *modes in numbers.view(-1, 5).tolist()
    ]
