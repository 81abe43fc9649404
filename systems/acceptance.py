"""Thresholds of acceptance of a site: what its machine has to reach, by contract or by experience.

A file a system, acceptance/NAME.yaml, which the site writes; `par4d accept --thresholds FILE` names another. Published
claims are elsewhere (engine/published), and so is what a machine's tests usually measure (references.py).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from engine.errors import nearest
from engine.published import UNITS
from engine.schema import Record
from systems.files import SystemFileError, read_as

FOLDER = Path(os.environ.get("PAR4D_ACCEPTANCE") or Path(__file__).parent / "acceptance").resolve()
"""PAR4D_ACCEPTANCE names another folder, for users who may not write into the project."""
SUITES = ("weak_scaling", "strong_scaling", "peak")
"""Suites whose jobs give a figure each that a threshold can be of."""
FACTORS: Mapping[str, float] = MappingProxyType(UNITS | {"ms": 1e-3, "flop/s": 1.0, "tokens/s": 1.0})


class Metric(NamedTuple):
    """Figure of a job that a threshold can be of."""

    units: tuple[str, ...]
    column: str
    """Column of the report's frame of runs."""
    may_be_zero: bool = False
    """Whether 0 is a measurement, as of communication that is hidden whole."""


_RATE, _SHARE = ("flop/s", "Tflop/s", "Pflop/s"), ("%",)
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "time_s": Metric(("s", "ms"), "time_s"),
        "compute_s": Metric(("s", "ms"), "compute_s"),
        "exposed_s": Metric(("s", "ms"), "collectives_s", may_be_zero=True),
        "tokens_per_s": Metric(("tokens/s",), "tokens_per_s"),
        "images_per_s": Metric(("images/s",), "images_per_s"),
        "hardware_flops_per_s": Metric(_RATE, "hardware_flops_per_s"),
        "model_flops_per_s": Metric(_RATE, "model_flops_per_s"),
        "best_flops_per_s": Metric(_RATE, "best_flops_per_s"),
        "hfu": Metric(_SHARE, "hfu"),
        "of_empirical": Metric(_SHARE, "of_empirical"),
        "memory": Metric(("bytes", "GB"), "memory_max"),
    }
)
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Threshold(Record):
    """Limit of one figure of one point."""

    suite: str
    point: str = Field(pattern=r"^[\w.]+(-[\w.]+)+$")
    """Series, devices and model, or number format: local-2-gpt-local-2, local-1-fp32."""
    metric: str
    at_least: Limit | None = None
    at_most: Limit | None = None
    unit: str
    source: str = Field(min_length=1)
    """Contract, or whatever the limit comes from."""

    @field_validator("suite", "metric")
    @classmethod
    def _known(cls, given: str, info: ValidationInfo) -> str:
        known = SUITES if info.field_name == "suite" else tuple(METRICS)
        if given not in known:
            raise ValueError(f"no {info.field_name} with such a name: {nearest(given, known)}")
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("a threshold has one of `at_least` and `at_most`")
        units = METRICS[self.metric].units
        if self.unit not in units:
            raise ValueError(f"{self.metric} is in {' or '.join(units)}, not in {self.unit!r}")
        return self

    @property
    def limit(self) -> float:
        """Limit in SI units; a percentage as a fraction."""
        given = self.at_least if self.at_least is not None else self.at_most
        assert given is not None
        return given * FACTORS[self.unit]

    @property
    def side(self) -> Literal["at least", "at most"]:
        return "at least" if self.at_least is not None else "at most"

    @property
    def text(self) -> str:
        """Limit as it is written in the file."""
        given = self.at_least if self.at_least is not None else self.at_most
        return f"{self.side} {given:g} {self.unit}"


class Acceptance(Record):
    """Thresholds of a system."""

    system: str = Field(min_length=1)
    thresholds: tuple[Threshold, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        known = [(one.suite, one.point, one.metric, one.side) for one in self.thresholds]
        if twice := next((one for one in known if known.count(one) > 1), None):
            raise ValueError(f"two thresholds are of {' '.join(twice)}")
        return self


def acceptance(path: Path) -> Acceptance:
    """Read a file of thresholds. Raises SystemFileError."""
    return read_as(Acceptance, path, what="an acceptance", holds="system and thresholds")


def known(folder: Path = FOLDER) -> list[Acceptance]:
    """Read the thresholds of all systems that have some. Raises SystemFileError for a file that can't be used, or that
    has another system's name, and for a folder that PAR4D_ACCEPTANCE names and that isn't there.
    """
    if folder == FOLDER and os.environ.get("PAR4D_ACCEPTANCE") and not folder.is_dir():
        raise SystemFileError(f"PAR4D_ACCEPTANCE names {folder}, which is no folder: make it, or unset the variable.")
    return [_of_its_name(path) for path in sorted(folder.glob("*.yaml")) if not path.name.startswith(".")]


def _of_its_name(path: Path) -> Acceptance:
    found = acceptance(path)
    if found.system != path.stem:
        raise SystemFileError(f"{path} has thresholds of {found.system}: rename it {found.system}.yaml, or correct it.")
    return found
