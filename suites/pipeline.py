"""How long does a step take under each schedule of a pipeline's stages, and how long does each stage wait?

    reframe -c suites/pipeline.py --system frontier                          one job a point, all schedules in turns
    reframe -c suites/pipeline.py --system vcluster -n 'machine=quiet' -r    nothing is made slower on purpose
    reframe -c suites/pipeline.py --system local -S schedules=gpipe,zero-bubble -S rounds=20 -r
    reframe -c suites/pipeline.py --system alps -S pipeline_limit=8 -S weight_limit=4
    reframe -c suites/pipeline.py --system local -n Bubbles -r               the bubbles of two equal stages

A schedule that a point's stages and micro-batches don't allow is left out, and the job's standard error says so.
"""

import re
from typing import Any

import reframe as rfm
from reframe.core.builtins import parameter, variable

from engine.grid import Grid
from engine.pipeline.registry import BASE
from suites.base.engine_test import command
from suites.base.figures import Figures, percent
from suites.base.in_rounds import InTurns, times_of
from suites.base.series import AUTO
from suites.base.training import SYSTEM, points_of

QUIET, SLOW_STAGE, DELAYS = "quiet", "slow-stage", "delays"


@rfm.simple_test
class PipelineSchedules(InTurns):
    """All schedules of one point, on a machine as it is, with a slow stage, and with messages that come late.

    schedules: those that are compared with 1f1b, all that can be unless set. pipeline_limit, weight_limit: of the
    message-driven ones, those of the engine unless set. slow_by: how much longer the middle stage computes. delays_s:
    each message leaves later by a random time up to that.
    """

    descr = "schedules of a pipeline"
    study = "pipeline"
    point = points_of("pipeline")
    machine = parameter([QUIET, SLOW_STAGE, DELAYS], loggable=True)
    schedules = variable(str, value="")
    pipeline_limit = variable(int, value=0)
    weight_limit = variable(int, value=0)
    slow_by = variable(float, value=0.2)
    delays_s = variable(float, value=0.005)
    checkpoint_activations = SYSTEM.device.kind == "cuda"

    def own_options(self) -> list[str]:
        """Have check take the contest's base, as the contest does, and simulate no schedules to choose one."""
        return command("", schedule=BASE if self.schedule == AUTO else None)

    def options(self) -> list[str]:
        slow = self.machine == SLOW_STAGE
        words = ["bench", "pipeline", *self.plan_options(self.corpus()), *self.round_options()]
        return words + command(
            "",
            timeline=True,
            schedules=self.schedules,
            pipeline_limit=self.pipeline_limit or None,
            weight_limit=self.weight_limit or None,
            slow_stage=Grid.parse(self.grid).stages // 2 if slow else None,
            slow_by=self.slow_by if slow else None,
            delays=self.delays_s if self.machine == DELAYS else None,
        )

    def judge(self) -> None:
        self.judge_rounds(self.record["config"]["schedules"])

    def figures(self) -> Figures:
        """idle: the part of a step that a stage waits for others, the mean of all; simulated: as a simulation has it.
        held: the most micro-batches that any stage keeps for their backward.
        """
        return {name: figure for one in self.sides() for name, figure in figures_of(one).items()}


@rfm.simple_test
class Bubbles(PipelineSchedules):
    """Stages that are equal: the report sets their bubbles beside the formula's. A weight gradient is a third of a
    micro-batch's work, as the zero bubble has it, only where nothing is computed again.
    """

    descr = "bubbles of a pipeline of equal stages"
    point = points_of("bubbles")
    machine = parameter([QUIET], loggable=True)
    schedules = "gpipe,zero-bubble"
    checkpoint_activations = False


def figures_of(one: dict[str, Any]) -> Figures:
    own = re.sub(r"\W+", "_", one["name"])
    return times_of(one, own) | {
        f"idle_{own}": (percent(one["idle_share"]), "%"),
        f"simulated_{own}": (percent(one["simulated_idle_share"]), "%"),
        f"held_{own}": (max(stage["most_held"] for stage in one["stages"]), "passes"),
    }
