"""Options of pipelines: how the stages are cut and what they do when. No torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

ScheduleName = Literal[
    "auto", "one-by-one", "gpipe", "1f1b", "interleaved", "zero-bubble", "message-driven", "message-driven-zb"
]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options for a network that is cut, but for schedule, which also orders the passes of one stage."""

    schedule: ScheduleName = "auto"
    """what stages do when; auto: what a simulation finds fastest within memory (schedules: engine/README.md)"""
    pipeline_limit: Annotated[int | None, Parameter(metavar="PASSES")] = None
    """micro-batches that are under way at most, of the message-driven schedules (default: the stages)"""
    weight_limit: Annotated[int | None, Parameter(metavar="PASSES")] = None
    """of them, those whose weight gradients wait, of message-driven-zb (default: all)"""
    chunks: int | None = None
    """parts of a stage's blocks, of interleaved (default: 2)"""
    stages: Annotated[str | None, Parameter(metavar="N,N..")] = None
    """blocks of each stage, such as 5,7,7,5, chunk after chunk (default: stages take equal time)"""


DEFAULT = PipelineOptions()
