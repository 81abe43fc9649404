"""Effects are rows that select published numbers, and a reason fits the side on which one is missed."""

from dataclasses import dataclass

import pytest

import systems
from engine import published, yaml_text
from engine.grid import Grid
from engine.simulator.machine import MachineModel
from engine.validation.document import NOT_KNOWN, Effect
from engine.validation.effects import Row, Rows, Steps
from engine.validation.measured import FOLDER

ROWS = Rows.model_validate(yaml_text.parse((FOLDER / "effects.yaml").read_text()))
REASONS = {"much": "it hides more", "little": "it hides less", "little left": "only {share:.0f} % left"}
PUBLISHED = [
    ("the model's grid", 13, 45),
    ("overlap of all-reduces, ", 18.69, 22),
    ("compute of a batch,", 30.1, 30.1),
    ("compute of a batch,", 13.19, 13.19),
    ("products, ", 55, 55),
    ("communication ", 6, 6.8),
    ("overlap oar by ", 5, 5),
    ("overlap oar,ors by ", 8, 8),
    ("overlap oar,ors,oag by ", 19, 19),
    ("overlap oar,ors,oag,cache=28 by ", 9, 9),
    ("overlap, all four ", 34, 35.6),
    ("time of a batch of 12 ", 247.49, 274.44),
    ("time of a batch of 24 ", 241.73, 268.05),
    ("time of a batch of 50 ", 255.14, 282.93),
    ("time of a batch of 100 ", 260.85, 289.26),
]
"""How each effect's name begins, and its published range, in the order of the file."""


@dataclass
class Before:
    """Step before the change, as far as a reason asks about it."""

    exposed_s: dict[str, float]
    time_s: float = 1.0


def row(**other: object) -> Row:
    of = ROWS.effects[0].model_dump() | {"name": "overlap", "hides": ("x",)} | other
    return Row.model_validate(of)


def effect(predicted: float) -> Effect:
    return Effect(
        name="overlap", setting="gpt", unit="%", predicted=predicted, published_low=5, published_high=8, source="a"
    )


def test_every_effect_has_its_published_range_and_reasons_that_there_are() -> None:
    for row, (begun, *ends) in zip(ROWS.effects, PUBLISHED, strict=True):
        assert row.name.startswith(begun)
        assert row.published_range() == tuple(ends), row.name
    assert len({row.name for row in ROWS.effects}) == len(PUBLISHED)
    assert {name for row in ROWS.effects for name in (row.above, row.below)} <= {*ROWS.reasons, NOT_KNOWN}
    assert ROWS.effects[0].jobs == {"gpt-5b": 512, "gpt-10b": 1024, "gpt-20b": 2048, "gpt-40b": 4096, "gpt-80b": 8192}


@pytest.mark.parametrize(
    ("predicted", "exposed_s", "reason"),
    [(9, 0.5, REASONS["much"]), (5, 0.5, ""), (8, 0.5, ""), (3, 0.5, REASONS["little"]), (3, 0.04, "only 4 % left")],
)
def test_a_reason_for_too_much_is_none_for_too_little(predicted: float, exposed_s: float, reason: str) -> None:
    told = row(above="much", below="little")
    assert told.reason(effect(predicted), REASONS, Before({"x": exposed_s, "z": 0.9})) == reason
    assert row().reason(effect(predicted), REASONS, None) == (NOT_KNOWN if effect(predicted).off else "")


BATCHES = [row for row in ROWS.effects if row.predicts == "time"]


def test_batches_are_predicted_with_the_stages_copies_and_micro_batches_of_table_ii() -> None:
    for row in BATCHES:
        ((model, devices),) = row.jobs.items()
        grid = Grid.parse(str(row.grid))
        assert grid.size == devices
        of = {"paper": "axonn-ipdps22", "where": "Table II", "framework": "AxoNN", "model": model.upper()}
        printed = [published.select(metric=metric, **of)[0].value for metric in ("inter", "data", "micro_batch")]
        assert [grid.stages, grid.data, row.micro_batch] == printed


def test_a_batch_takes_what_the_stages_of_its_grid_take_together() -> None:
    steps = Steps(MachineModel.of(systems.load("summit"), "fp16", None))
    candidate, _, step = steps.best(BATCHES[0], "gpt-12b", BATCHES[0].overlap)
    assert (str(candidate.grid), candidate.micro, step.schedule) == ("1x1x1x8p6", 8, "message-driven")
    assert step.time_s == pytest.approx(206, rel=0.02)
    assert step.time_s == pytest.approx(step.compute_s + sum(step.exposed_s.values()))
