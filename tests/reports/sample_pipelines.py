"""Results of the study of pipelines as a machine would leave them: a simulation of all stages is what was measured."""

import random
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from sample_results import train

from engine.grid import Grid
from engine.overlap.tasks import Direction, StageTask
from engine.pipeline.registry import ScheduleChoice
from engine.pipeline.simulation import Times, Transit, play
from engine.result import metrics
from engine.result.judges.bubble import OF_THE_FORMULA
from engine.result.schema import Result
from engine.result.schema.contest import Contest, Ratio, ScheduleSide, StageTimes

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "message-driven", "message-driven-zb")
PASSES = 8
TASK_S = 0.01
REST_S = 0.008


def pipeline(
    *,
    jobs: int = 1,
    rounds: int = 6,
    grid: str = "1x1x1x1p4",
    schedules: Sequence[str] = SCHEDULES,
    job: int = 0,
    slow_stage: int | None = None,
    delays_s: float = 0.0,
    drawn: bool = True,
    failure: str | None = None,
    **shape: Any,
) -> list[Result]:
    known = {"partition": "cpu", "dtype": "fp32", "sequences": PASSES, "study": "pipeline", "system": "vcluster"}
    known |= {"model": "gpt-vcluster-deep"} | shape
    results = []
    for number in range(jobs):
        run = train(
            ranks=Grid.parse(grid).size, grid=grid.partition("p")[0], failure=failure, job=job + number, **known
        )
        config = run.config | {"slow_stage": slow_stage, "slow_by": 0.2, "delays_s": delays_s}
        config["batch"] = {"sequences": PASSES * Grid.parse(grid).batch_split, "micro": 1}
        empty = {"iterations": (), "summary": None, "breakdown": None, "timeline": None, "collectives": ()}
        own: dict[str, Any] = {}
        if not failure:
            drawing = random.Random(f"{grid}{job + number}")
            stages = Grid.parse(grid).stages
            listed = [_turns(name, stages, rounds, slow_stage, drawing, drawn=drawn) for name in schedules]
            own = {"contest": contest([_compared(one, listed[0]) for one in listed])}
        changes = {"kind": "pipeline", "grid": grid, "config": config} | own | empty
        results.append(run.model_copy(update=changes))
    return results


def contest(sides: Sequence[ScheduleSide]) -> Contest:
    return Contest(base="1f1b", sides=tuple(sides))


def _turns(
    name: str, stages: int, rounds: int, slow_stage: int | None, drawing: random.Random, *, drawn: bool
) -> ScheduleSide:
    schedule = ScheduleChoice(name).make()
    parts = dict.fromkeys(Direction, TASK_S)
    if not schedule.deferring:
        parts = {Direction.FORWARD: TASK_S, Direction.BACKWARD: 2 * TASK_S}

    def work_s(stage: int, task: StageTask) -> float:
        return parts[task.direction] / schedule.chunks * (1.2 if stage == slow_stage else 1.0)

    quiet = play(schedule, stages, PASSES, Times(work_s, lambda stage, task: Transit(0.0, 0.0)))
    noisy = Times(lambda *at: work_s(*at) * drawing.uniform(1.0, 1.3), lambda stage, task: Transit(0.0, 0.001))
    step = play(schedule, stages, PASSES, noisy)
    step_s, quiet_s = step.time_s + REST_S, quiet.time_s + REST_S
    noise = [drawing.uniform(0.99, 1.01) for _ in range(rounds)]
    made = tuple(
        StageTimes(
            idle_share=metrics.idle_share(step.time_s - busy_s, step_s),
            simulated_idle_share=metrics.idle_share(quiet.time_s - quiet_busy_s, quiet_s),
            task_s={direction.value: time_s / schedule.chunks for direction, time_s in parts.items()},
            most_held=schedule.live_passes(stage, stages, PASSES)[0],
            most_pending=schedule.live_passes(stage, stages, PASSES)[1],
            tasks=tuple(
                (f"{one.task.direction.value[0].upper()}{one.task.number}{'.1' * one.task.chunk}", *one[2:])
                for one in step.played
                if one.stage == stage and drawn
            ),
            idle_s=tuple((some * (step.time_s - busy_s),) for some in noise),
            work_s=tuple((some * busy_s,) for some in noise),
        )
        for stage, (busy_s, quiet_busy_s) in enumerate(zip(step.busy_s, quiet.busy_s, strict=True))
    )
    times = [step_s * some for some in noise]
    return ScheduleSide(
        name=name,
        rounds_s=tuple((time_s,) for time_s in times),
        time_per_iteration_s=fmean(times),
        idle_share=fmean(one.idle_share for one in made),
        simulated_idle_share=fmean(one.simulated_idle_share for one in made),
        auto=name == "zero-bubble",
        simulated_s=quiet_s,
        stages=made,
        drawn_s=step_s if drawn else None,
    )


def _compared(one: ScheduleSide, base: ScheduleSide) -> ScheduleSide:
    if one is base:
        return one
    pairs = [(median(own), median(of)) for own, of in zip(one.rounds_s, base.rounds_s, strict=True)]
    return one.model_copy(update={"over_base": Ratio.of(metrics.paired([pairs]))})


def with_times(run: Result, *, of_formula: float, uneven: float = 0.0) -> Result:
    """The result with stages that wait for that part of what is expected of them and work equally long.

    uneven: by this share the last works longer.
    """
    stages, schedules = Grid.parse(run.grid or "").stages, []
    for one in run.sides(ScheduleSide):
        expected = OF_THE_FORMULA.get(one.name, 1.0) * (stages - 1) / PASSES
        works_s = [tuple(time_s / 2 for time_s in times) for times in one.rounds_s]
        waits_s = [tuple(of_formula * expected * time_s for time_s in times) for times in works_s]
        times = {"work_s": tuple(works_s), "idle_s": tuple(waits_s)}
        *same, last = (stage.model_copy(update=times) for stage in one.stages)
        longer = tuple(tuple((1 + uneven) * time_s for time_s in times) for times in works_s)
        same.append(last.model_copy(update={"work_s": longer}))
        schedules.append(one.model_copy(update={"stages": tuple(same)}))
    return run.model_copy(update={"contest": contest(tuple(schedules))})


def hostile(run: Result, name: str) -> Result:
    """The result with this name for a schedule and a task, and times that no clock shows."""
    first, second, *others = run.sides(ScheduleSide)
    stage = first.stages[0]
    tasks = (("F" + "9" * 5000, 0.0, 1e-3), (name, 0.0, 1e-3), ("B0", -1e308, 1e308), *stage.tasks)
    times = {"idle_s": ((1e308,), ()), "work_s": ((), (0.0,))}
    odd = stage.model_copy(update={"tasks": tasks, "idle_share": 1e308, "most_held": -1} | times)
    first = first.model_copy(update={"name": name, "stages": (odd, *first.stages[1:]), "simulated_s": 1e-308})
    second = second.model_copy(update={"rounds_s": ((), (1e308,)), "drawn_s": 1e308, "idle_share": -1e308})
    return run.model_copy(update={"contest": contest((first, second, *others))})
