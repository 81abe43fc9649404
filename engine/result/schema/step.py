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


class Collective(Record):
    """It is what rank 0 sent in one counted iteration along one axis: bytes are those of the input buffers.

    time_s: from the start of each to its end, summed; collectives in flight together count each. Absent where they
    were not timed.
    """

    kind: str
    axis: str
    calls: float
    bytes: float
    time_s: float | None = None


class AxisTime(Record):
    """It is communication along one axis: exposed_s is waited for, hidden_s is in flight while the rank computes."""

    axis: str
    exposed_s: float
    hidden_s: float


class Phase(Record):
    """A phase is a part of the step: forward, backward (recomputation included), reduce (what is left of it),
    optimizer.

    compute_s + blocking_s + exposed_s is its length. blocking_s: waits for results without which nothing is left to
    do, which no schedule can hide (with oar, for as long as an input gradient takes beyond the weight gradient).
    exposed_s: waits for the others, which could have been in flight earlier or waited for later. hidden_s: of its
    compute, what has a collective in flight; up to version 2, the flights begun in it, summed. Without clipping the
    optimizer steps in the reduce phase, as each bucket of gradients is summed.
    """

    name: str
    compute_s: float
    blocking_s: float
    exposed_s: float
    hidden_s: float


class LaneTime(Record):
    """It says how long a lane's collectives are in flight: of a group's ranks the least, of the groups the most."""

    lane: str
    busy_s: float


class MachineUsage(Record):
    """It is what the ranks of one machine take of it in a step; of several machines the one with the longest bound.

    A machine is one running kernel, whatever host names its nodes have, or what a control group with a limit on
    processors leaves of it. cores: those that its ranks may use, a part of one where the limit says so.
    processor_s: of all its ranks, threads of their collectives included. link_bytes: what the busiest host name's
    network interfaces, without the loopback, carried one way; link_bytes_per_s: as it was given.
    """

    ranks: int
    threads_per_rank: int
    cores: float
    processor_s: float
    link_bytes: float
    link_bytes_per_s: float | None = None

    @property
    def shared(self) -> bool:
        """Say whether its ranks take turns on its cores."""
        return self.ranks * self.threads_per_rank > self.cores


class Bound(Record):
    """No schedule of the same work can beat it. by: "compute", the name of a lane, "processors" or "link"."""

    bound_s: float
    by: str
    step_by_bound: float


class HostTime(Record):
    """These are seconds of one counted iteration in which the ranks of a host compute, averaged over them: all that
    isn't exposed communication. Where one host is slow it has more of them than the others, which wait for it.
    """

    host: str
    ranks: int
    compute_s: float


class Breakdown(Record):
    """These are mean seconds of one counted iteration on rank 0; compute_s + collectives_s is the iteration.

    collectives_s is exposed communication, the time that the rank's compute stands still for a collective, waiting
    for slower ranks included: the sum of exposed_s over axes, and of blocking_s and exposed_s over phases.
    compute_s is the rest of the iteration, hidden_s what of it has a collective in flight. share_hidden, bound: as
    metrics.py defines them; machine: where ranks compute on processors. Up to version 2 there were none of these.
    hosts: of all ranks, in the order of the first rank of each.
    """

    compute_s: float
    collectives_s: float
    hidden_s: float | None = None
    share_hidden: float | None = None
    axes: tuple[AxisTime, ...] = ()
    phases: tuple[Phase, ...] = ()
    lanes: tuple[LaneTime, ...] = ()
    machine: MachineUsage | None = None
    bound: Bound | None = None
    hosts: tuple[HostTime, ...] = ()


class LossScaling(Record):
    """It says how the loss of fp16 was scaled. scale: the one that the next step would have had. skipped: how many
    steps of the training were skipped, those before a resume included; skipped_iterations: which of this run.
    """

    scale: float
    skipped: int
    skipped_iterations: tuple[int, ...] = ()


class Span(Record):
    """A span is something of one step on rank 0; seconds are from the start of the step.

    lane: "compute" for the phases of the step and the waits in them; for collectives the axis and, where an axis has
    several lanes, which ("z", "z gather"). kind: "phase", "wait" or "collective". A collective begins when
    it is issued, or when the one before it on its lane ends, and ends when its result is there.
    """

    lane: str
    kind: Literal["phase", "wait", "collective"]
    name: str
    start_s: float
    end_s: float
    issued_s: float | None = None


class Timeline(Record):
    """It says what ran when in one iteration on rank 0."""

    iteration: int
    step_s: float
    spans: tuple[Span, ...]


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
