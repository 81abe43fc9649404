"""Choice of a mode for each matrix product, one for all ranks, from the cache or timed now (axonn-sc24 V-C)."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from statistics import median

import torch

from engine.comm.funnel import Comm
from engine.layers.matmul import PLAIN, Kernels, Mode, Role
from engine.output import RENEWED
from engine.precision import Precision
from engine.result import metrics, provenance
from engine.result.judges import choices
from engine.result.schema.tuning import ModeTime, TunedShape, Tuning
from engine.tuning.cache import Table, cache_file, key, load, save
from engine.tuning.shapes import Products
from engine.tuning.timing import GemmVariant, gemm_variants, rate, time_shape

log = logging.getLogger(__name__)

BUDGET_S = {"cpu": 30.0, "cuda": 6.0}
"""Time for all shapes together, as far as the fewest rounds allow it."""
LONGER = 4
"""Most rounds of a second timing, over those of its budget, until it shows whether a choice is fast enough."""
MODES = (None, *Mode)
MARGIN = 0.02
"""Least gain of a choice at the median: what gains less isn't worth being another one."""
Times = Mapping[GemmVariant, Sequence[float]]


def wins(times_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Return whether a way is faster than another: at the median by the margin, and in all rounds but one."""
    ratios = [own / other for own, other in zip(times_s, others_s, strict=True)]
    return median(ratios) < 1 - MARGIN and sum(ratio >= 1 for ratio in ratios) <= 1


def choose(times: Times, forwards: int) -> Kernels:
    """Choose how to multiply, from the seconds by round of each way: by more than the noise, else as PyTorch does.

    forwards: how often O is computed for each dI and dW. The weight is stored by columns if the layer's products
    together are faster then.
    """
    best = {stored: _modes(times, column_major=stored) for stored in (False, True)}
    plain, moved = (seconds_of(times, best[stored], forwards) for stored in (False, True))
    chosen = best[moved is not None and plain is not None and wins(moved, plain)]
    return PLAIN if chosen is None else chosen


def _modes(times: Times, *, column_major: bool) -> Kernels | None:
    """Find the best mode of each product with the weight stored so; None where the weight can't be."""
    found = {}
    for role in Role:
        mine = {way: of for way, of in times.items() if (way.role, way.column_major) == (role, column_major)}
        own = next((of for way, of in mine.items() if way.own), None)
        if own is None:
            return None
        faster = [way for way, of in mine.items() if not way.own and wins(of, own)]
        fastest = min(faster, key=lambda way: median(mine[way]), default=None)
        found[role] = None if fastest is None else fastest.mode
    return Kernels(column_major, found[Role.FORWARD], found[Role.INPUT_GRADIENT], found[Role.WEIGHT_GRADIENT])


def fastest(times: Times, forwards: int) -> Kernels | None:
    """Return the fastest way of each product, by whatever little; None if nothing was timed."""
    found = []
    for stored in (False, True):
        ways = {role: [way for way in times if (way.role, way.column_major) == (role, stored)] for role in Role}
        if all(ways.values()):
            modes = [min(mine, key=lambda way: median(times[way])).mode for mine in ways.values()]
            found.append(Kernels(stored, *modes))
    return min(found, key=lambda of: median(seconds_of(times, of, forwards) or [inf]), default=None)


def uses(way: GemmVariant, kernels: Kernels) -> bool:
    """Return whether a layer with these kernels computes in this way."""
    mode = kernels.mode(way.role)
    return way.column_major == kernels.column_major and (way.own if mode is None else way.mode is mode)


def seconds_of(times: Times, kernels: Kernels | None, forwards: int) -> list[float] | None:
    """Return the seconds by round of all three products of a layer with these kernels; None without them."""
    if kernels is None:
        return None
    weights = {Role.FORWARD: forwards}
    parts = [[weights.get(way.role, 1) * s for s in of] for way, of in times.items() if uses(way, kernels)]
    return [sum(part) for part in zip(*parts, strict=True)]


def tune(
    listed: Sequence[Products], dtype: str, comm: Comm, *, force: bool = False
) -> tuple[dict[str, Kernels], Tuning]:
    """Return how each layer multiplies, by its name, and the times behind the choice. Collective.

    dtype: of the products, by its name. force: time again what is in the cache.
    """
    start = time.perf_counter()
    file, table = _kept(comm) if comm.rank == 0 else (None, None)
    kept = {key(shape): shape for shape in table.shapes} if table is not None and not force else {}
    shapes = [_with_layers(kept.get(key(new), new), new) for new in (_untimed(products, dtype) for products in listed)]
    kernels = _agreed(comm, [_kernels(shape) if key(shape) in kept else None for shape in shapes])
    missing = [index for index, of in enumerate(kernels) if of is None]
    for number, index in enumerate(missing, 1):
        products, shape = listed[index], shapes[index]
        log.info("tuning %d/%d  %s", number, len(missing), describe(shape), extra=RENEWED)
        times, kernels[index] = _choose(products, dtype, comm, BUDGET_S[comm.device.type] / len(missing))
        shapes[index] = _timed(shape, times, kernels[index] or PLAIN, fastest(times, products.forwards))
        log.info("%s", describe(shapes[index]))
        if table is not None and shapes[index].times:
            table = save(file, table, shapes[index])
    chosen_by_layer = {
        layer: of or PLAIN for products, of in zip(listed, kernels, strict=True) for layer in products.layers
    }
    return chosen_by_layer, Tuning(time_s=time.perf_counter() - start, timed=len(missing), shapes=tuple(shapes))


def _choose(products: Products, dtype: str, comm: Comm, budget_s: float) -> tuple[Times, Kernels]:
    """Time all ways in turns, then once more the winners and what they won against, and keep the second times.

    Of many ways one would win by chance, and the best of them looks better than it is.
    """
    ways = _ways(products, dtype, comm)
    times = time_shape(products, Precision.parse(dtype), comm, ways, budget_s=budget_s / 2)
    kernels = choose(times, products.forwards)
    if kernels != PLAIN:
        ways = [way for way in times if uses(way, kernels) or way.own]
        again = time_shape(
            products, Precision.parse(dtype), comm, ways, budget_s=budget_s / 2, rounds=len(next(iter(times.values())))
        )
        kernels = choose(again, products.forwards)
        times |= again
    return times, kernels


def _ways(products: Products, dtype: str, comm: Comm) -> list[GemmVariant]:
    return gemm_variants(Precision.parse(dtype).compute, comm.device, movable=products.movable)


def time_again(tuning: Tuning, listed: Sequence[Products], dtype: str, comm: Comm) -> Tuning:
    """Judge the choice of a tuning in a second timing of all ways. Collective.

    Where that doesn't tell whether the choice is fast enough, it goes on to twice and LONGER times as many rounds.
    """
    again = []
    for products, shape in zip(listed, tuning.shapes, strict=True):
        log.info("timing once more  %s", describe(shape), extra=RENEWED)
        ways, budget_s = _ways(products, dtype, comm), BUDGET_S[comm.device.type] / len(listed)
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
    """Return the file in which this rank's machine keeps its table, and the table."""
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
    """Return the timed shape with the layers of this model: it may have been timed for another's."""
    return shape.model_copy(update={"layers": new.layers, "layer": new.layer})


def _kernels(shape: TunedShape) -> Kernels:
    modes = [mode and Mode(mode) for mode in (shape.forward, shape.input_gradient, shape.weight_gradient)]
    return Kernels(shape.column_major, *modes)


def _fastest(shape: TunedShape) -> Kernels | None:
    """Return the ways that were fastest when the shape was first timed, if that was kept."""
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
            chosen=uses(way, kernels),
            fastest=first_fastest is not None and uses(way, first_fastest),
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
    """Return what rank 0 knows on every rank; None for what it doesn't. Collective."""
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
