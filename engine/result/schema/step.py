"""Parts of a training's result: its grid, what a step sends, where its time goes, and its energy."""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

from engine.errors import UsageError
from engine.grid import Grid
from engine.schema import Record


def _grid(text: str) -> str:
    try:
        Grid.parse(text)
    except UsageError as error:  # which pydantic would let through, without the file and the key
        raise ValueError(str(error).removesuffix(".")) from None
    return text


GridText = Annotated[str, AfterValidator(_grid)]
"""A grid, as in 2x2x2x1."""


class Collective(Record):
    """Collectives of rank 0 in one counted iteration along one axis."""

    kind: str
    axis: str
    calls: float
    bytes: float
    """Size of input buffers."""
    time_s: float | None = None
    """Sum of the time of each from its start to its end, also of those in flight together; None if not timed."""
    exposed_s: float | None = None
    """Time that the rank waits for them; None if not timed, and in older results, like hidden_s."""
    hidden_s: float | None = None
    """Sum of their time in flight while the rank computes."""


class AxisTime(Record):
    """Communication along one axis."""

    axis: str
    exposed_s: float
    """Time that the rank waits."""
    hidden_s: float
    """Time in flight while the rank computes."""


class Phase(Record):
    """Part of the step, of length compute_s + blocking_s + exposed_s: forward, backward (with recomputation), reduce
    (what is left of it), optimizer. Without clipping the optimizer steps in the reduce phase, bucket by bucket.
    """

    name: str
    compute_s: float
    blocking_s: float
    """Waits for results without which nothing is left to do, which no schedule can hide; with oar, for as long as an
    input gradient takes beyond the weight gradient.
    """
    exposed_s: float
    """Other waits, for what could have been in flight earlier or waited for later."""
    hidden_s: float
    """Part of compute_s with a collective in flight; up to version 2 the sum of all flights begun in the phase."""


class LaneTime(Record):
    """Time that a lane's collectives are in flight: the least of a group's ranks, the most of the groups."""

    lane: str
    busy_s: float


class MachineUsage(Record):
    """Usage of one machine by its ranks in a step; of several machines the one with the longest bound.

    A machine is one running kernel, whatever host names its nodes have, or what a control group with a limit on
    processors leaves of it.
    """

    ranks: int
    threads_per_rank: int
    cores: float
    """Cores that its ranks may use, a part of one where a limit says so."""
    processor_s: float
    """Time of all its ranks, threads of their collectives included."""
    link_bytes: float
    """Bytes that the network interfaces of the busiest host name, without the loopback, carried one way."""
    link_bytes_per_s: float | None = None

    @property
    def shared(self) -> bool:
        """Whether its ranks have more threads than it has cores."""
        return self.ranks * self.threads_per_rank > self.cores


class Bound(Record):
    """Time that no schedule of the same work can beat."""

    bound_s: float
    by: str
    """Cause that sets it: "compute", the name of a lane, "processors" or "link"."""
    step_by_bound: float


class HostTime(Record):
    """Mean seconds of one counted iteration in which the ranks of a host compute: all but exposed communication.

    A slow host has more of them than the others, which wait for it.
    """

    host: str
    ranks: int
    compute_s: float


class Breakdown(Record):
    """Mean seconds of one counted iteration on rank 0, which is compute_s + collectives_s.

    Up to version 2 there were only these two.
    """

    compute_s: float
    collectives_s: float
    """Exposed communication, waiting for slower ranks included: the sum of exposed_s over axes, and of blocking_s and
    exposed_s over phases.
    """
    hidden_s: float | None = None
    """Part of compute_s with a collective in flight."""
    share_hidden: float | None = None
    axes: tuple[AxisTime, ...] = ()
    phases: tuple[Phase, ...] = ()
    lanes: tuple[LaneTime, ...] = ()
    machine: MachineUsage | None = None
    """None on accelerators."""
    bound: Bound | None = None
    hosts: tuple[HostTime, ...] = ()


class LossScaling(Record):
    """Scaling of the loss of fp16."""

    scale: float
    """Scale of the next step."""
    skipped: int
    """Steps of the training that were skipped, those before a resume included."""
    skipped_iterations: tuple[int, ...] = ()
    """Skipped ones of this run."""


class Span(Record):
    """Something in one step on rank 0; seconds are from the start of the step."""

    lane: str
    """Phases and waits have "compute"; a collective its axis, with the lane if that has several: z gather."""
    kind: Literal["phase", "wait", "collective"]
    name: str
    start_s: float
    """A collective begins when it is issued, or when the one before it on its lane ends."""
    end_s: float
    """A collective ends when its result is there."""
    issued_s: float | None = None


class Timeline(Record):
    """One iteration on rank 0."""

    iteration: int
    step_s: float
    spans: tuple[Span, ...]


Component = Literal["device", "processor", "memory", "node"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
"""A device is an accelerator; a node is everything in it, the other three included."""


class ComponentEnergy(Record):
    """Energy of one component over the whole job; None where it is not known whole."""

    component: Component
    joules: float | None = None
    joules_per_iteration: float | None = None
    tokens_per_joule: float | None = None
    counters: int = 0
    """Distinct counters that were summed, each once however many ranks share what it counts."""
    machines: int = 0
    scope: str | None = None
    """Whose energy they count."""
    source: str | None = None
    sample_s: float | None = None
    """Time between samples where power was summed; None where joules were read at the start and the end."""
    unmeasured: str | None = None


class Energy(Record):
    """Energy from the first counted iteration to the last, without checkpoints saved and iterations profiled between
    them. There is no sum over components, as a node includes the others.
    """

    seconds: float | None = None
    """Time from the first reading to the last, of the rank that took longest."""
    iterations: int = 0
    components: tuple[ComponentEnergy, ...] = ()
    unmeasured: str | None = None
