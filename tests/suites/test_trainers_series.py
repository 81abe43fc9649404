"""The series of baselines run every row of trainers' own tables (trainers.yaml) as it was run, on both sides."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from running import option, succeed

import systems
from engine import yaml_text
from engine.models.catalogue import lookup
from engine.published import machine_name, select
from engine.published.claims import figures
from suites.base.contests import Match, case_of, matches
from suites.base.series import Point, Series, points

FILE = Path(__file__).with_name("trainers.yaml")
SYSTEMS = {"llm-foundry": ("h100", "a100"), "torchtitan": ("h100-96gb",)}
ROWS = {"llm-foundry": 52 + 8, "torchtitan": 2}
BUILDS = 3
"""Of ours before the peer and after it, and of the peer: each is warmed up."""
OF_THE_LIMIT = 0.55
"""Part of a job's time that steps may take at the published rates."""


class Row(NamedTuple):
    """Row of a table."""

    system: str
    devices: int
    model: str
    sequence: int
    sequences: int
    micro_batch: int
    recomputed: str


def typed(trainer: str) -> list[Row]:
    return [Row(*row) for row in yaml_text.read(FILE)[trainer]]


def of_trainer(trainer: str) -> list[tuple[str, Point]]:
    """List the points of a trainer's series, each with its system."""
    found = [(system, point) for system in SYSTEMS[trainer] for point in points("baselines", system)]
    return [(system, point) for system, point in found if point.series.name.startswith(trainer)]


def row_of(system: str, point: Point) -> Row:
    series = point.series
    sequence = series.sequence or lookup(point.model).sequence
    recomputed = "all" if series.training.recomputed_together else "none"
    assert point.micro_batch is not None
    return Row(system, point.devices, point.model, sequence, point.sequences, point.micro_batch, recomputed)


def differences(rows: Iterable[Row], run: Iterable[Row]) -> set[Row]:
    """Return the rows that one of both has and the other hasn't."""
    return set(rows) ^ set(run)


@pytest.mark.parametrize("trainer", SYSTEMS)
def test_every_row_is_a_point_and_every_point_a_row(trainer: str) -> None:
    rows, run = typed(trainer), [row_of(system, point) for system, point in of_trainer(trainer)]
    assert differences(rows, run) == set()
    assert (len(set(rows)), len(run)) == (ROWS[trainer], ROWS[trainer])


def with_series(**fields: object) -> Callable[[Point], Point]:
    def planted(point: Point) -> Point:
        return dataclasses.replace(point, series=point.series.model_copy(update=fields))

    return planted


@pytest.mark.parametrize(
    "plant",
    [
        lambda point: dataclasses.replace(point, micro_batch=point.micro_batch + 1),
        lambda point: dataclasses.replace(point, sequences=2 * point.sequences),
        lambda point: dataclasses.replace(point, model="mpt-125m"),
        with_series(sequence=128),
    ],
)
def test_a_planted_point_is_found(plant: Callable[[Point], Point]) -> None:
    first, *others = of_trainer("llm-foundry")
    run = [row_of(system, point) for system, point in [(first[0], plant(first[1])), *others]]
    assert len(differences(typed("llm-foundry"), run)) == 2


@pytest.mark.parametrize("trainer", SYSTEMS)
def test_published_numbers_are_of_the_typed_rows(trainer: str) -> None:
    numbers = [one for one in select(paper=trainer, metric="tokens_per_s") if one.dtype == "bf16"]
    found = {
        Row(
            machine_name(one.system),
            int(one.devices or 0),
            one.model.lower(),
            one.sequence or 0,
            (one.batch_tokens or 0) // (one.sequence or 1),
            one.micro_batch or 0,
            one.recomputed.replace("selective", "all"),
        )
        for one in numbers
    }
    assert differences(typed(trainer), found) == set()
    assert {one.sums for one in numbers} == {"fp32"}


def of_published_rows(name: str) -> list[Match]:
    return [match for match in matches(systems.load(name)) if match.point.series.known_to_fit]


@pytest.mark.parametrize("name", ["h100", "a100", "h100-96gb"])
def test_both_sides_take_the_rows_micro_batch_and_sums_whatever_is_estimated(name: str) -> None:
    found = of_published_rows(name)
    assert found
    for match in found:
        case = case_of(match.point, systems.load(name))
        assert match.fits
        assert match.micro_batch == match.point.micro_batch == case.batch.micro
        assert (case.precision, case.sums["reduce_dtype"]) == ("bf16", "fp32")
        assert case.model.sequence == (match.point.series.sequence or lookup(match.point.model).sequence)
        assert case.checkpoint_activations == (match.point.series.training.recomputed_together != 0)


@pytest.mark.parametrize("name", ["h100", "a100"])
def test_steps_at_the_published_rates_end_well_within_the_limit(name: str) -> None:
    rates = {
        (one.model.lower(), one.devices, one.sequence): one
        for one in select(paper="llm-foundry", metric="tokens_per_s")
        if machine_name(one.system) == name
    }
    for match in of_published_rows(name):
        point, series = match.point, match.point.series
        if not series.name.startswith("llm-foundry"):
            continue
        number = rates[point.model, point.devices, series.sequence or 2048]
        step_s = point.sequences * number.sequence / number.si  # type: ignore[operator]
        steps = BUILDS * _warmup(series) + 2 * series.steps_per_round * series.rounds
        assert steps * step_s <= OF_THE_LIMIT * systems.seconds(point.time_limit or ""), f"{match}: {steps} steps"


def _warmup(series: Series) -> int:
    return series.warmup if "warmup" in series.model_fields_set else 3


def test_a_job_is_told_the_rows_options(tmp_path: Path) -> None:
    """A row whose estimate exceeds what a plan counts on of the device."""
    words = ["-c", "suites/baselines.py", "--system", "h100", "-n", "llm-foundry-512-8-mpt-760m", "--dry-run"]
    script = succeed(tmp_path, *words, PAR4D_ACCOUNT="abc123").script
    wanted: dict[str, Any] = {"--model": "mpt-760m", "--seq": "512", "--batch-size": "1536", "--micro-batch": "96"}
    wanted |= {"--peer-micro-batch": "96", "--reduce-dtype": "fp32", "--layout": "1x1x8x1", "--precision": "bf16"}
    assert {name: option(script, name) for name in wanted} == wanted
    assert " --despite-estimate" in script
    assert "--checkpoint-activations" not in script


def test_every_claim_of_trainers_is_redone_or_says_what_the_engine_can_not_express() -> None:
    claims = [claim for trainer in SYSTEMS for figure in figures(trainer) for claim in figure.claims]
    assert len(claims) == 3 + 2 + 6
    lacking = {number.lacking for claim in claims for number in claim.numbers if not claim.redo}
    assert lacking == {"selective checkpointing, fp8"}
    for claim in claims:
        needs = {number.lacking for number in claim.numbers} - {""}
        assert bool(claim.status) == bool(needs), claim.place
        assert all(claim.status.removeprefix("the engine can't express ") in lack for lack in needs)
