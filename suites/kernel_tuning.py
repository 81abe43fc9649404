"""Matrix products of a rank are timed in every mode and tuned; then a whole step shows what it gains by that.

    reframe -c suites/kernel_tuning.py --system local -r             small networks, products and steps
    reframe -c suites/kernel_tuning.py --system frontier             every network of the published series
    reframe -c suites/kernel_tuning.py --system frontier -n par4d-64  one network, as 64 devices train it
    reframe -c suites/kernel_tuning.py --system alps -S model=llama-3.1-8b -n KernelTuning.*5b    another network there

The products are those of one rank of a point's grid, so that one accelerator does for a job of any size; processors
time as many ranks at once as the point has, as they share power and memory. All is timed twice: the second timing knows
nothing of the choice and shows whether it holds. z and data change no product, so a step of the network's first blocks
on as many devices as x and y have shows what tuning gains (axonn-sc24 V-C). Convolutions aren't tuned, as
PyTorch's kernels take images as they are: of a U-Net that leaves most of the flops out.
"""

from collections.abc import Sequence
from contextlib import suppress

import reframe as rfm
from reframe.core.builtins import run_after, variable
from reframe.core.exceptions import SanityError
from reframe.utility import typecheck as typ

from engine.batch import Batch
from engine.grid import SPLITTING_FEATURES, Grid
from engine.models.catalogue import lookup
from engine.result import UNTUNED, metrics
from engine.result.gate import Outcome, all_of
from engine.result.judges import choices
from engine.result.schema.tuning import TunedShape
from suites.base.engine_test import command
from suites.base.figures import Figures, speed_up_figures
from suites.base.training import SYNTHETIC, SYSTEM, PointTraining, Refused, points_of


def verdict(shapes: Sequence[TunedShape]) -> tuple[Outcome, str]:
    """Judge whether no choice is slower than PyTorch's own ways in the second timing, and say which shapes are."""
    found = [(choices.by_own(shape), shape) for shape in shapes]
    outcome = all_of(*(contest.outcome for contest, _ in found))
    reasons = [
        f"what was chosen for {shape.layer}, {shape.m} x {shape.k} by {shape.k} x {shape.n}, takes "
        f"{contest.interval.low:.3f} to {contest.interval.high:.3f} times as long as PyTorch's own modes in the second "
        f"timing, but {choices.SLOWEST:g} is allowed"
        for contest, shape in found
        if contest.outcome == outcome != "pass"
    ]
    return outcome, "; ".join(reasons)


def plane_of(grid: str) -> Grid:
    """Return one x and y plane of a grid: other planes compute the same products on other sequences."""
    whole = Grid.parse(grid)
    return Grid().sized({axis: whole[axis] for axis in SPLITTING_FEATURES})


class OfOneRank(PointTraining):
    """A test of what one rank computes where a point is trained, on the grid that the engine gives it there."""

    study = "kernel_tuning"
    breakdown = False

    def own_options(self) -> list[str]:
        return []

    @property
    def at_once(self) -> int:
        """Say how many sequences a rank computes at once."""
        return self.micro_batch or self.share

    @property
    def share(self) -> int:
        """Say how many sequences a rank has in a step."""
        return Batch(self.sequences).per_rank(Grid.parse(self.grid))


@rfm.simple_test
class KernelTuning(OfOneRank):
    """`engine bench matmul`. A choice that is slower than PyTorch's own in the second timing fails, and so does one
    that this timing, with up to four times the rounds, doesn't decide: its reason begins with "undecided".
    """

    descr = "matrix products of a rank in all modes"
    point = points_of("kernel_tuning")

    @property
    def started_ranks(self) -> int | None:
        return self.num_tasks if self.device == "cpu" else 1

    @run_after("setup")
    def take_one_accelerator(self) -> None:
        if self.device != "cpu":
            self.num_tasks = 1

    def options(self) -> list[str]:
        words = command("bench matmul", model=self.model, grid=self.grid, micro_batch=self.at_once)
        words += command("", micro_batches=self.share // self.at_once)
        return [*words, *self.training_words(self.asked), "--twice"]

    @property
    def shapes(self) -> list[TunedShape]:
        """Return the shapes that could be timed, as they are in the second timing."""
        return [shape for shape in map(TunedShape.model_validate, self.record["tuning"]["again"]) if shape.times]

    def judge(self) -> None:
        if not self.shapes:
            raise SanityError("no product was timed a second time, so nothing says whether the choice holds")
        outcome, reasons = verdict(self.shapes)
        if outcome != "pass":
            raise SanityError(f"undecided: {reasons}" if outcome == "undecided" else reasons)

    @property
    def changes(self) -> bool:
        """Say whether any product is computed in another way than PyTorch's."""
        return any(way.chosen and (way.column_major or not way.own) for of in self.shapes for way in of.times)

    def figures(self) -> Figures:
        own_s, chosen_s = (
            sum(of.layers * (getattr(of, name) or 0.0) for of in self.shapes) for name in ("own_s", "chosen_s")
        )
        rates = [way.flops_per_s for of in self.shapes for way in of.times if way.chosen]
        held = choices.share_that_holds([choices.by_fastest(shape) for shape in self.shapes])
        found: Figures = {
            "speed_up": (metrics.speed_up(own_s, chosen_s), "x"),
            "choices_that_hold": (100 * held.low, "%"),
            "undecided_choices": (100 * (held.high - held.low), "%"),
            "fastest_product": (max(rates), "flop/s"),
            "slowest_product": (min(rates), "flop/s"),
            "tuning": (self.record["tuning"]["time_s"], "s"),
        }
        device = self.system.device
        for name, known in (("advertised", device.peak_flops), ("empirical", device.empirical_peak_flops)):
            peak = next((fact.value for dtype, fact in known.items() if dtype == self.precision), None)
            if peak is not None:
                found[f"fastest_product_of_{name}"] = (100 * metrics.utilisation(max(rates), 1, peak), "%")
                found[f"slowest_product_of_{name}"] = (100 * metrics.utilisation(min(rates), 1, peak), "%")
        return found


@rfm.simple_test
class TunedStep(OfOneRank):
    """The engine with its tuner takes turns with the engine without (`engine bench peers`). On one device it is four
    jobs; on more it is one, which decides nothing: --repeat 3 to 6 do.

    layers: how many of the first blocks there are, so that two copies fit the devices; all where they differ. always:
    whether to measure also where the tuner has left all products as they are, and a step gains nothing by definition;
    what is measured then is noise, of which processors have enough to be worth a look.
    """

    descr = "a step with tuned products against one without"
    point = points_of("kernel_tuning")
    layers = variable(int, value=2)
    rounds = variable(int, value=6)  # of fewer one job has no interval
    steps_per_round = variable(int, value=2)
    always = variable(typ.Bool, value=SYSTEM.device.kind == "cpu")
    plane: Grid | None = None

    @run_after("init")
    def follow_the_products(self) -> None:
        (same,) = KernelTuning.get_variant_nums(point=lambda point: point == self.point)
        self.products = KernelTuning.variant_name(same)
        self.depends_on(self.products)

    @property
    def started_ranks(self) -> int | None:
        return None if self.plane is None else self.plane.size

    def fit_partition(self) -> None:
        """Find the plane before setup does, as its ranks are those that the job takes; setup tells what is refused."""
        with suppress(Refused):
            self.plane = plane_of(self.find_grid(SYNTHETIC))

    @run_after("setup")
    def take_a_plane(self) -> None:
        self.plane = plane_of(self.grid)
        self.num_tasks = self.plane.size
        tuned = self.getdep(self.products)
        if not self.always and tuned.record and not tuned.changes:
            self.skip(
                f"the tuner leaves all products of {self.model} on {self.grid} as they are, so a step takes 1.0 times "
                "as long by definition: -S always=yes measures it all the same"
            )

    def options(self) -> list[str]:
        layers = self.layers if lookup(self.model).network().alike else None
        words = command("bench peers", peer=UNTUNED, grid=self.plane, model=self.model, layers=layers)
        words += [*command("", batch_size=self.at_once), *self.contest_words]
        words += command("", precision=self.precision, device=self.device)
        return words + command("", rounds=self.rounds, steps_per_round=self.steps_per_round)

    def judge(self) -> None:
        contests = self.record["comparisons"]
        untuned = [job for contest in contests for job in contest["jobs"] if job["tuning"] is None]
        if len(contests) != 1 or untuned:
            raise SanityError(f"{len(contests)} contests, {len(untuned)} untuned: it should be one, and tuned")

    def figures(self) -> Figures:
        (contest,) = self.record["comparisons"]
        return {
            "tuned_step": (contest["ours_median_s"], "s"),
            "untuned_step": (contest["peer_median_s"], "s"),
            **speed_up_figures("speed_up_of_step", contest["paired"]),
        }
