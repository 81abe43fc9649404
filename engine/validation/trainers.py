"""Predict what trainers publish of accelerators that nobody here has calibrated, by what their kind reaches, and fit
that anew to the few rows that are for it (rows/trainers.yaml).

    python -m engine.validation.trainers            the rows and the verdict, in a minute
    python -m engine.validation.trainers --refit    the same with the numbers fitted anew, which it prints
    python -m engine.validation.trainers --parts    also where the time of each row goes

FSDP is the grid 1x1xNx1. Selective checkpointing lies between recomputing nothing and everything: its time is the mean
of both. What a trainer's program does to memory beside the engine's step is added (rows/programs.yaml), and kernels of
compiled rows are fused.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log as ln

from scipy.optimize import least_squares

import systems
from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.output import log_to_stderr, say
from engine.overlap.flags import Overlap
from engine.published import Number, machine_name
from engine.simulator.events import Sweep
from engine.simulator.machine import MachineModel
from engine.tracing.predict import Traced, trace_network
from engine.training_record import Training
from engine.validation.calibrate import UNFITTED
from engine.validation.held_out import spread, spreads
from engine.validation.parts import Parts, part_of
from engine.validation.programs import RankStep, program_of
from engine.validation.table import parts_text, trainers_text
from engine.validation.trainer_rows import (
    PREDICTED,
    Rules,
    TrainerRow,
    errors_by_network,
    is_of,
    measured_s,
    rows,
    rules,
)

log = logging.getLogger(__name__)

RECOMPUTED = {"none": (0,), "selective": (0, 1), "all": (1,)}
"""Blocks that are recomputed together, for each way; the mean of several times counts."""
WIDEST = "H100"
"""System by whose errors the intervals of the others are."""
CARDS = {"H100 96GB": ("h100", "NVIDIA H100 96GB HBM2e")}
"""Systems that are another one's nodes with another card: torchtitan's have eight, and 400 Gb/s a GPU, as that has."""
SHARED = {"A100": ("memory",)}
"""Numbers of a system that are the first system's; what else isn't fitted is as its file has it."""
LEAST, MOST = 0.05, 1.0
"""Bounds of a share that is fitted."""
START = 0.5
STEP = 1e-3
"""Part of a number over which derivatives are differences."""


@dataclass(frozen=True, slots=True)
class TracedRow:
    """Published row with the traces whose mean time is its prediction."""

    number: Number
    traces: tuple[Traced, ...]
    beside: Sweep
    """Passes of the row's own program over memory."""

    def on(self, machine: MachineModel) -> float:
        """Return the seconds of its step on a machine."""
        times_s = [trace.on(machine).time_s for trace in self.traces]
        return sum(times_s) / len(times_s) + machine.compute_s(self.beside)

    def parts(self, machine: MachineModel) -> Parts:
        """Part the step's time on a machine."""
        return part_of(self.traces, self.beside, machine)

    def error(self, machine: MachineModel) -> float:
        """Return ln(predicted / measured)."""
        return ln(self.on(machine) / measured_s(self.number))


def trace_row(number: Number, given: Rules) -> TracedRow:
    """Trace a row as FSDP runs it, with the row's batch, micro-batch, sequence and recomputation."""
    log.info("%s on %s of %s, %s tokens", number.model, number.devices, number.system, f"{number.sequence:,}")
    assert number.sequence
    assert number.batch_tokens
    network: Architecture = lookup(number.model.lower())
    network = replace(network, sequence=number.sequence)  # type: ignore[type-var]
    batch = Batch(number.batch_tokens // number.sequence, number.micro_batch)
    grid = Grid.parse(f"1x1x{number.devices}x1")
    program, ways = program_of(number), RECOMPUTED[number.recomputed]
    found = []
    for together in ways:
        options = given.training.recomputing(together)
        training = Training.of(options, network, batch, overlap=Overlap.parse(given.overlap))
        found.append(trace_network(training, grid, compiled=program.compiled if number.compiled else "nothing"))
    step = RankStep(
        parameters=network.parameters,
        ranks=grid.size,
        micro_batches=batch.per_rank(grid) // batch.at_once(grid),
        features=batch.per_rank(grid) * number.sequence * network.hidden * network.layers,
        recomputed=sum(ways) / len(ways),
        compiled=number.compiled,
    )
    return TracedRow(number, tuple(found), program.beside(step))


def machine_of(number: Number, *, by_sheets: bool = False) -> MachineModel:
    """Make the machine of a row by its system's file alone. by_sheets: without what its kind reaches."""
    name, card = CARDS.get(number.system, (machine_name(number.system), None))
    system = systems.load(name)
    device = system.device if card is None else systems.device_called(card)
    if device is None:
        raise UsageError(f"systems/devices has no {card}, of which {number.paper} has rows: add it.")
    if by_sheets:
        device = device.model_copy(update={"reached": {}})
    return MachineModel.of(system.model_copy(update={"device": device}), PREDICTED, None)


def fit(traced: Sequence[TracedRow], names: Sequence[str], machine: MachineModel) -> dict[str, float]:
    """Fit numbers of a kind to rows, by least squares of the logarithms of times. Raises ValueError without rows, or
    with fewer than numbers.
    """
    if len(traced) < max(1, len(names)):
        raise ValueError(f"{len(names)} numbers take as many rows, but {len(traced)} were given.")

    def misfits(values: Sequence[float]) -> list[float]:
        tried = machine.reaching(dict(zip(names, map(float, values), strict=True)))
        return [row.error(tried) for row in traced]

    found = least_squares(misfits, [START] * len(names), bounds=(LEAST, MOST), diff_step=STEP)
    return {name: float(f"{value:.3g}") for name, value in zip(names, found.x.tolist(), strict=True)}


def refit(traced: Sequence[TracedRow], given: Rules) -> dict[str, dict[str, float]]:
    """Fit the numbers of each system anew, the first system's first, as others share numbers of it."""
    found: dict[str, dict[str, float]] = {}
    for system, names in given.numbers.items():
        mine = [row for row in traced if any(is_of(one, row.number) for one in given.list_fitted(system))]
        if not mine:
            raise UsageError(f"Nothing is fitted to of {system}: name a row of it in rows/trainers.yaml.")
        first = next(iter(found.values()), {})
        shared = {name: first[name] for name in SHARED.get(system, ())}
        machine = machine_of(mine[0].number).reaching(shared)
        found[system] = shared | fit(mine, names, machine)
    return found


def predict(
    traced: Sequence[TracedRow] | None = None, fitted: Mapping[str, Mapping[str, float]] | None = None
) -> list[TrainerRow]:
    """Predict every row. fitted: numbers by system in place of those of the files, of which other systems of the same
    kind take the first's.
    """
    given = rules()
    traced = traced if traced is not None else [trace_row(number, given) for number in rows()]
    if not traced:
        return []
    times_s: dict[Number, float] = {}
    for row in traced:
        times_s[row.number] = row.on(_machine(row.number, fitted))
    own = errors_by_network(times_s, WIDEST)
    of_network = spreads(own, UNFITTED.spread)
    elsewhere = spread([error for errors in own.values() for error in errors])
    return [
        _row(row, times_s[row.number], of_network[row.number.model] if row.number.system == WIDEST else elsewhere)
        for row in traced
    ]


def _machine(number: Number, fitted: Mapping[str, Mapping[str, float]] | None) -> MachineModel:
    """Make the machine of a row, with numbers of its system, or else the first system's, in place of the file's."""
    machine = machine_of(number)
    return machine.reaching(fitted.get(number.system, next(iter(fitted.values())))) if fitted else machine


def _row(row: TracedRow, predicted_s: float, width: float) -> TrainerRow:
    number = row.number
    assert number.sequence
    assert number.batch_tokens
    return TrainerRow(
        source=number.source,
        system=machine_name(number.system),
        model=number.model.lower(),
        devices=int(number.devices or 0),
        sequence=number.sequence,
        sequences=number.batch_tokens // number.sequence,
        micro_batch=number.micro_batch or 0,
        recomputed=number.recomputed,
        compiled=number.compiled,
        lacking=number.lacking,
        measured_s=measured_s(number),
        predicted_s=predicted_s,
        low_s=predicted_s / (1 + width),
        high_s=predicted_s * (1 + width),
        by_sheets_s=row.on(machine_of(number, by_sheets=True)),
        use=rules().choose_use(number),
    )


def main(words: Sequence[str]) -> int:
    """Print the rows and the verdict; 2 for words that are none of its options."""
    if set(words) - {"--refit", "--parts"}:
        raise UsageError(f"{' '.join(words)!r} is no option: --refit and --parts are the only ones.")
    log_to_stderr(0)
    traced = [trace_row(number, rules()) for number in rows()]
    fitted = refit(traced, rules()) if "--refit" in words else None
    found = predict(traced, fitted)
    say(trainers_text(found))
    if "--parts" in words:
        parts = [row.parts(_machine(row.number, fitted)) for row in traced]
        say(parts_text(list(zip(found, parts, strict=True))))
    for system, numbers in (fitted or {}).items():
        say(f"systems/devices, {system}: {', '.join(f'{name} {value:g}' for name, value in numbers.items())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
