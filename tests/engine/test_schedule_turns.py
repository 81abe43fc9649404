"""`bench pipeline`: which schedules it compares, what they come to, and what a slower stage changes of that."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from engine_command import SMALL, finish, start
from pipelines import make
from trainers import trainer_of
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.cli.trained import trained
from engine.comm.funnel import Comm
from engine.contest.played_schedules import StageMeans, TaskSpan, find_spans, simulate
from engine.contest.rounds import Disturbance, Rounds
from engine.contest.schedules import CheckedSchedules, check_schedules
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL
from engine.overlap.tasks import Direction, StageTask
from engine.pipeline.registry import NAMES, PipelineOptions, ScheduleChoice
from engine.result.metrics import paired
from engine.result.schema import Iteration, read
from engine.result.schema.contest import OverlapSide, Ratio, ScheduleSide
from engine.training.checks import ContestSetup
from engine.training.config import RunConfig
from engine.training.trainer import Trainer

PASSES = 4
TWO = Grid(pipe=2)
FEW = Rounds(rounds=2, steps=2, warmup=1)
QUIET = Disturbance()


def config_of(grid: Grid = TWO, **changes: Any) -> RunConfig:
    batch = changes.pop("batch", Batch(PASSES * grid.batch_split, 1))
    model = ModelChoice(layers=4, hidden=32, heads=4, vocab=64, seq=8)
    return RunConfig(model=model, grid=grid, batch=batch, data="synthetic", device="cpu", **changes)


def asked(
    names: Sequence[str] = (),
    *,
    grid: Grid = TWO,
    rounds: Rounds = FEW,
    disturbance: Disturbance = QUIET,
    **changes: Any,
) -> tuple[CheckedSchedules, list[str]]:
    return check_schedules(config_of(grid, **changes), ALL, grid.size, rounds, names, disturbance, drawn=True)


def compared(run: CheckedSchedules) -> tuple[tuple[ScheduleSide, ...], list[float]]:
    """Compare them; return what rank 0 finds, and the losses on its way."""

    def work(comm: Comm) -> tuple[tuple[ScheduleSide, ...], list[float]]:
        assert comm.recorder is not None

        def of(training: Any, comm: Comm, *, tune_matmul: object = None) -> Trainer:
            assert comm.recorder is not None
            return Trainer(training, run.dataset, comm, comm.recorder)

        iterations: list[Iteration] = []
        setup = ContestSetup(of(run.training, comm), lambda grid: comm, of, iterations, 0.0)
        return run.compare(setup).sides, [iteration.loss for iteration in iterations]

    return run_ranks(run.grid, work, record=True)[0]


@pytest.fixture(scope="module")
def run() -> tuple[ScheduleSide, ...]:
    names = ("gpipe", "interleaved", "zero-bubble", "message-driven-zb")
    return compared(asked(names, disturbance=Disturbance(slow_stage=1, delays_s=1e-3))[0])[0]


def test_each_schedule_has_its_rounds_and_is_compared_with_1f1b_round_by_round(run: tuple[ScheduleSide, ...]) -> None:
    base, *others = run
    names = ["1f1b", "gpipe", "interleaved", "zero-bubble", "message-driven-zb"]
    assert [one.name for one in run] == names
    assert base.over_base is None
    for one in others:
        assert [len(times) for times in one.rounds_s] == [2, 2]
        pairs = [(median(own), median(of)) for own, of in zip(one.rounds_s, base.rounds_s, strict=True)]
        assert one.over_base == Ratio.of(paired([pairs]))


def test_a_stage_tells_its_idle_share_its_tasks_and_what_it_keeps(run: tuple[ScheduleSide, ...]) -> None:
    held = {one.name: [(stage.most_held, stage.most_pending) for stage in one.stages] for one in run}
    assert held["gpipe"] == [(4, 0), (4, 0)]
    assert held["1f1b"] == [(2, 0), (1, 0)]
    assert held["zero-bubble"] == [(2, 1), (1, 2)]
    for one in run:
        deferring = one.name in ("zero-bubble", "message-driven-zb")
        assert one.idle_share == pytest.approx(mean(stage.idle_share for stage in one.stages))
        assert one.simulated_idle_share == pytest.approx(mean(stage.simulated_idle_share for stage in one.stages))
        for stage in one.stages:
            assert 0 <= stage.idle_share < 1
            assert set(stage.task_s) == {"forward", "backward", *(["weight"] if deferring else [])}
            assert [*map(len, stage.idle_s)] == [*map(len, stage.work_s)] == [*map(len, one.rounds_s)]
            assert all(idle_s > 0 for idle_s in chain.from_iterable(stage.idle_s))
            assert stage.idle_share * mean(chain.from_iterable(one.rounds_s)) == pytest.approx(
                mean(chain.from_iterable(stage.idle_s))
            )
            passes = PASSES * (2 if one.name == "interleaved" else 1)
            assert passes * sum(stage.task_s.values()) == pytest.approx(mean(chain.from_iterable(stage.work_s)))
        assert one.machine is not None
        assert one.machine.cores > 0
        # A wait is no part of a task: else both together would be longer than the step, of which stage 0 has the time.
        first = one.stages[0]
        steps = zip(*(chain.from_iterable(of) for of in (one.rounds_s, first.idle_s, first.work_s)), strict=True)
        assert all(idle_s + work_s <= step_s for step_s, idle_s, work_s in steps)


def test_the_timeline_has_every_task_of_a_step_of_each_stage_one_after_the_other(run: tuple[ScheduleSide, ...]) -> None:
    for one in run:
        letters = "FBW" if one.name in ("zero-bubble", "message-driven-zb") else "FB"
        wanted = {f"{letter}{number}" for letter in letters for number in range(PASSES)}
        if one.name == "interleaved":
            wanted |= {f"{task}.1" for task in wanted}
        assert one.drawn_s in [time_s for times in one.rounds_s for time_s in times]
        for stage in one.stages:
            assert {task for task, *_ in stage.tasks} == wanted
            moments = [moment for _, *span in stage.tasks for moment in span]
            assert moments == sorted(moments)


def test_neither_turns_nor_a_slow_stage_change_what_is_learnt() -> None:
    found = asked(("gpipe", "zero-bubble"), disturbance=Disturbance(slow_stage=0, delays_s=1e-3))[0]
    _, losses = compared(found)

    def plain(comm: Comm) -> list[float]:
        trainer = trainer_of(found.config, comm)
        return [trainer.step().loss for _ in losses]

    assert losses == pytest.approx(run_ranks(TWO, plain, record=True)[0], rel=1e-6)


def test_a_task_lasts_from_when_its_message_is_there_until_it_is_over() -> None:
    tasks = [StageTask(Direction.FORWARD, 0), StageTask(Direction.BACKWARD, 0)]
    marks = [("forward", 0.0), ("message", 1.0), ("forward", 2.0), ("message", 3.0), ("backward", 5.0)]
    marks += [("message", 8.0), ("reduce", 9.0), ("", 10.0)]
    assert find_spans(tasks, marks) == [TaskSpan(tasks[0], 2.0, 3.0), TaskSpan(tasks[1], 5.0, 8.0)]


def test_the_simulation_takes_each_stages_own_times_and_the_rest_of_a_step() -> None:
    times = {Direction.FORWARD: 1.0, Direction.BACKWARD: 2.0}
    one, slow = (StageMeans(0.0, {at: time_s * by for at, time_s in times.items()}) for by in (1, 2))
    idle, step_s = simulate(make("gpipe"), 4, [one, one], rest_s=3.0)
    assert step_s == pytest.approx(4 * 3 + 3 + 3)
    assert idle == pytest.approx([3 / 18, 3 / 18])
    idle, step_s = simulate(make("gpipe"), 4, [one, slow], rest_s=0.0)
    assert step_s == pytest.approx(1 + 4 * 6 + 2)
    assert idle == pytest.approx([15 / 27, 3 / 27])


def test_all_that_can_be_are_compared_and_what_cant_is_said() -> None:
    run, left_out = asked(grid=Grid(pipe=3), device_memory=1e9)
    others = [name for name in NAMES if name not in ("one-by-one", "1f1b", "interleaved")]
    assert list(run.choices) == [
        *map(ScheduleChoice, ["1f1b", *others]),
        ScheduleChoice("message-driven-zb", limit=4, cap=4),
    ]
    assert run.auto == run.choices[-1]
    (said,) = left_out
    assert said.startswith("interleaved")
    sides = len(run.choices)
    assert (run.config.warmup, run.config.iterations) == (sides, sides + sides * 4)
    assert run.drawn
    many, (*_, told) = asked(batch=Batch(5000, 1))
    assert not many.drawn
    assert "30,000" in told
    limited, _ = asked(("message-driven-zb", "gpipe"), pipeline=PipelineOptions(pipeline_limit=3, weight_limit=2))
    few = ScheduleChoice("message-driven-zb", limit=3, cap=2)
    assert list(limited.choices) == [ScheduleChoice("1f1b"), few, ScheduleChoice("gpipe")]
    assert limited.as_options()["schedules"] == [str(choice) for choice in limited.choices]


@pytest.mark.parametrize(
    ("names", "changes", "sentence"),
    [
        (("1f1b",), {}, "compared with 1f1b"),
        (("gpip",), {}, "'gpip'"),
        (("interleaved",), {"grid": Grid(pipe=3)}, "multiple of 3"),
        ((), {"grid": Grid()}, "--pipe N"),
        ((), {"disturbance": Disturbance(slow_stage=2)}, "--slow-stage .* 0 to 1"),
        ((), {"pipeline": PipelineOptions(schedule="gpipe")}, "--schedules gpipe"),
    ],
)
def test_what_cant_be_compared_is_one_sentence(names: tuple[str, ...], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        asked(names, **changes)


@pytest.mark.parametrize(("option", "value"), [("slow_by", -1.0), ("delays_s", float("nan"))])
def test_what_disturbs_is_no_negative_number(option: str, value: float) -> None:
    with pytest.raises(UsageError, match="from 0 up"):
        Disturbance(**{option: value})  # type: ignore[arg-type]


def test_two_processes_write_a_result_of_which_a_person_reads_a_line_for_each_schedule(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    options = ["--pipe", "2", "--grid", "1x1x1x1", "--micro-batch", "2", "--schedules", "message-driven-zb,auto"]
    options += ["--timeline", "--rounds", "2", "--label", "study=a", "--out", str(out)]
    codes, said = finish(start(2, "bench", "pipeline", *SMALL, *options))
    assert codes == [0, 0], said
    result = read(out)
    assert (result.kind, result.status, result.grid, result.sides(OverlapSide)) == ("pipeline", "ok", "1x1x1x1p2", ())
    assert [one.name for one in result.sides(ScheduleSide)] == result.config["schedules"]
    assert [len(stage.tasks) for one in result.sides(ScheduleSide) for stage in one.stages][:2] == [8, 8]
    assert result.config["pipeline"]["blocks"] == [[1], [1]]
    head, base, *others = trained(result).splitlines()
    assert head.split()[:3] == ["schedule", "step,", "ms"]
    assert base.split()[0] == "1f1b"
    assert sum(one.auto for one in result.sides(ScheduleSide)) == 1
    assert len(others) == len(result.sides(ScheduleSide)) - 1
    assert "round 2/2  message-driven-zb" in said[0]
