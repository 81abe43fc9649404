# ruff: noqa: F403
"""Every derived figure, computed here and nowhere else: the engine writes them, suites and reports ask for them.

Each function is one figure. Its formula is written in the names of its parameters, and its docstring says what is
counted, what not and how it is measured: the report's page of methods prints both. No torch, no pandas, no pydantic.
"""

from engine.result.metrics import device, overlap, rounds, training
from engine.result.metrics.definition import Definition
from engine.result.metrics.device import *
from engine.result.metrics.overlap import *
from engine.result.metrics.rounds import *
from engine.result.metrics.training import *

DEFINITIONS: tuple[Definition, ...] = tuple(
    definition
    for file in (training, device, overlap, rounds)
    for value in vars(file).values()
    if isinstance(definition := getattr(value, "definition", None), Definition)
)
"""Of every figure, in the order of the page."""
