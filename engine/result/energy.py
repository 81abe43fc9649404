"""This part of the schema of result.json is the energy that the counted iterations took."""

from typing import Literal, get_args

from engine.schema import Record

Component = Literal["device", "processor", "memory", "node"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
"""A device is an accelerator; a node is everything in it, the other three included."""


class ComponentEnergy(Record):
    """It is one component's energy over the whole job; None, and why (unmeasured), where it is not known whole.

    counters: distinct ones that were summed, each once however many ranks share what it counts; machines: they are on.
    scope: whose energy they count, source: what was read, sample_s: seconds between samples where power was summed;
    absent where a counter of joules was read at the start and the end.
    """

    component: Component
    joules: float | None = None
    joules_per_iteration: float | None = None
    tokens_per_joule: float | None = None
    counters: int = 0
    machines: int = 0
    scope: str | None = None
    source: str | None = None
    sample_s: float | None = None
    unmeasured: str | None = None


class Energy(Record):
    """It is the energy from the first counted iteration to the last, but for checkpoints saved and iterations profiled
    between them.

    seconds: from the first reading to the last one, of the rank that took longest. No sum over components is given: a
    node holds the others. unmeasured: why nothing was read at all.
    """

    seconds: float | None = None
    iterations: int = 0
    components: tuple[ComponentEnergy, ...] = ()
    unmeasured: str | None = None
