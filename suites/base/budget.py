"""Time of a whole training, of the tokens that a series names."""

from engine.result import metrics
from suites.base.figures import Figures
from suites.base.training import PointTraining

DAY_S = 86400


class ToSolution(PointTraining):
    """Training of a point, by whose rate the series' budget of tokens takes so long (axonn-ipdps22 VI-D)."""

    def figures(self) -> Figures:
        """Add the time to solution, which a series without a budget of tokens hasn't."""
        budget, rate = self.point.series.token_budget, float(self.record["summary"]["tokens_per_s"])
        days = None if budget is None else metrics.time_to_solution(budget, rate) / DAY_S
        return super().figures() | {"time_to_solution": (days, "days")}

    def labels(self) -> dict[str, str]:
        budget = self.point.series.token_budget
        return super().labels() | ({} if budget is None else {"token_budget": f"{budget:g}"})
