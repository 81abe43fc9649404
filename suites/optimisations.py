"""Gain of each optimisation over those before it: grid, tuned products, overlap (axonn-sc24 VII-A and Fig. 7).

    reframe -c suites/optimisations.py --system frontier                    five jobs, on 512 to 8192 GCDs
    reframe -c suites/optimisations.py --system frontier -n gpt-20b         one of them
    reframe -c suites/optimisations.py --system vcluster -r
    reframe -c suites/optimisations.py --system local -S grid=1x1x1x2 -S overlap=data -r

In each job four sides take turns, and all train the same: the baseline, tensor parallelism within a node and hybrid
sharding across nodes; the grid that `par4d plan` finds the fastest of one stage without overlap, or the engine chooses
on a machine that can't be simulated; matrix products tuned on it; and overlap. The report parts each step into compute
and exposed communication. Where a device can't hold the models of all sides, each is built anew for its turn. The gains
of one job are its own; --repeat 3 to 6 say what others would gain.
"""

from typing import Any

import reframe as rfm
from reframe.core.builtins import run_after, run_before, variable

from engine.batch import Batch
from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.planning.rank import Workload, grid_within_nodes
from engine.training_record import Training
from suites.base.engine_test import command
from suites.base.figures import Figures, speed_up_figures
from suites.base.in_rounds import InTurns
from suites.base.planned import OnPlannersGrid
from suites.base.series import AUTO
from suites.base.training import SYNTHETIC, Refused, checked_grid, points_of


@rfm.simple_test
class Optimisations(OnPlannersGrid, InTurns):
    """All sides of one point. baseline: its grid, if not the usual one. overlap: that of the last side, if not the
    papers'.
    """

    descr = "gain of each optimisation over those before it"
    study = "optimisations"
    point = points_of("optimisations")
    baseline = variable(str, value=AUTO, loggable=True)

    @run_before("setup")
    def take_the_planners_grid(self) -> None:
        """Take the planner's grid where it has the machine's facts, and else the engine's own choice."""
        if self.grid == AUTO:
            self.plan_grid(micro_batch=self.micro_batch, overlap="none", pipe=1)

    @run_after("setup")
    def settle_baseline(self) -> None:
        """Choose the baseline's grid, and check it before the job waits in a queue. Raises Refused."""
        if self.baseline == AUTO:
            memory = self.system.device.memory_bytes
            training = Training.of(self.asked, lookup(self.model), Batch(self.sequences, self.micro_batch))
            workload = Workload(training, memory.value if memory else None, self.device)
            try:
                grid = grid_within_nodes(workload, self.num_tasks, self.ranks_of_a_node or self.num_tasks)
            except UsageError as error:
                raise Refused(str(error)) from None
            self.baseline = str(grid)
        models, self.grid = self.grid, self.baseline
        checked_grid((*self.plan_options(SYNTHETIC), "--ranks", str(self.num_tasks)))
        self.grid = models

    def options(self) -> list[str]:
        words = ["bench", "optimisations", *self.plan_options(self.corpus()), *command("", baseline=self.baseline)]
        return [*words, *self.round_options()]

    def judge(self) -> None:
        self.judge_rounds(self.record["config"]["optimisations"])

    def figures(self) -> Figures:
        return {name: figure for side in self.sides() for name, figure in figures_of(side).items()}


def figures_of(side: dict[str, Any]) -> Figures:
    """Return a side's figures: its speed-up is over the side before it, its parts those of rank 0."""
    own, breakdown = side["name"], side["breakdown"] or {}
    found: Figures = {
        f"time_{own}": (side["time_per_iteration_s"], "s"),
        f"compute_{own}": (breakdown.get("compute_s"), "s"),
        f"exposed_{own}": (breakdown.get("collectives_s"), "s"),
    }
    if ratio := side["over_former"]:
        found |= speed_up_figures(f"speed_up_{own}", ratio)
    return found
