"""Elements that two linear layers move in 1D, 2D, 2.5D and 3D, and memory (colossal-ai, Table 1, Fig. 5 and 8).

    reframe -c suites/layers.py --system system-i            memory on 4 and 8 A100s
    reframe -c suites/layers.py --system local -r            small layers; minutes, beside anything
    reframe -c suites/layers.py --system local -n Moved -r   what 64 ranks move, by one that stands for each

The paper prints neither widths nor tokens of Fig. 8: each layer gives as many features as it takes, as in Table 1, and
there are as many tokens as the largest hidden size.
"""

from typing import NamedTuple

import reframe as rfm
from reframe.core.builtins import parameter, run_after
from reframe.core.exceptions import SanityError

from engine.grid import Grid
from engine.result.schema import Result, parse
from suites.base.engine_test import EngineTest, command
from suites.base.figures import Figures
from suites.base.training import SYSTEM


class Layout(NamedTuple):
    """Mode and grid in which two layers lie."""

    mode: str
    grid: str

    def __str__(self) -> str:
        return f"{self.mode}-{self.grid}"


class LayersTest(EngineTest):
    """`engine bench layers`, whose counts have to be those of the closed forms."""

    study = "layers"
    tags = {"layers"}
    layout: Layout
    precision = "fp32"
    time_limit = "5m"

    @property
    def result(self) -> Result:
        return parse(self.record, "the result")

    def shapes(self) -> list[str]:
        """Return the options that say how large the layers are."""
        raise NotImplementedError

    def options(self) -> list[str]:
        words = command("bench layers", grid=self.layout.grid, tensor_mode=self.layout.mode)
        return [*words, *self.shapes(), *command("", precision=self.precision, device=self.device)]

    def judge(self) -> None:
        for one in self.result.layers:
            if round(one.moved_elements) != one.moved_formula:
                raise SanityError(
                    f"{self.layout} moves {one.moved_elements:,.0f} elements, by the formula {one.moved_formula:,}"
                )

    def figures(self) -> Figures:
        most = self.result.layers[-1]
        return {
            "moved_elements": (most.moved_elements, "elements"),
            "held": (most.held_bytes, "B"),
            "held_by_formula": (most.held_bytes / most.held_formula, "1"),
            "peak": (most.peak_bytes, "B"),
        }


@rfm.simple_test
class Moved(LayersTest):
    """Elements that two products of Table 1 and Fig. 5 move, on up to 64 ranks."""

    descr = "what two products move by tensor mode"
    num_tasks = 1
    layout = parameter(
        [
            *(Layout("1d", f"{ranks}x1x1x1") for ranks in (4, 8, 16, 64)),
            *(Layout("2d-published", f"{side}x{side}x1x1") for side in (2, 4, 8)),
            *(Layout("2.5d", grid) for grid in ("2x2x1x2", "4x4x1x4")),
            *(Layout("3d", f"{side}x{side}x{side}x1") for side in (2, 4)),
        ],
        fmt=lambda layout: str(layout),
        loggable=True,
    )

    def shapes(self) -> list[str]:
        return command("", batch=32, hidden=1024, seq=512)


BATCHES, FEATURES = ("32..512", "1024..16384") if SYSTEM.device.kind == "cuda" else ("32..512", "64..1024")
HIDDEN, BATCH, SEQUENCE = (1024, 32, 512) if SYSTEM.device.kind == "cuda" else (64, 32, 32)
"""Fixed one of each range, and tokens of a sequence."""


class Held(LayersTest):
    """Memory of two layers on 4 and 8 ranks."""

    oversubscribe = True  # memory is counted
    layout = parameter(
        [
            *(Layout("1d", f"{ranks}x1x1x1") for ranks in (4, 8)),
            *(Layout("2d", "2x2x1x1"), Layout("2.5d", "2x2x1x1"), Layout("2.5d", "2x2x1x2"), Layout("3d", "2x2x2x1")),
        ],
        fmt=lambda layout: str(layout),
        loggable=True,
    )

    @run_after("init")
    def take_the_grids_ranks(self) -> None:
        self.num_tasks = Grid.parse(self.layout.grid).size


@rfm.simple_test
class ByBatch(Held):
    """Range of batches (colossal-ai Fig. 8a and b)."""

    descr = "what two layers hold, by batch"

    def shapes(self) -> list[str]:
        return command("", batch=BATCHES, hidden=HIDDEN, seq=SEQUENCE)


@rfm.simple_test
class ByWidth(Held):
    """Range of hidden sizes (colossal-ai Fig. 8c and d)."""

    descr = "what two layers hold, by hidden size"

    def shapes(self) -> list[str]:
        return command("", batch=BATCH, hidden=FEATURES, seq=SEQUENCE)
