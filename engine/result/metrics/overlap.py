"""Metrics of overlap and of pipelines."""

from engine.result.metrics.definition import figure


@figure("Speed-up (as fast as)", "base_s / time_s")
def speed_up(base_s: float, time_s: float) -> float:
    """Factor by which something is faster than its base, by time per iteration; for tuned products PyTorch's own modes
    by those that were chosen, by the time of the products of one or all layers in a micro-batch.
    """
    return base_s / time_s


@figure("Time saved (gain)", "1 - time_s / base_s")
def saved(base_s: float, time_s: float) -> float:
    """Share of the time per iteration that is saved: 20 % is 0.8 times as long and 1.25 times as fast."""
    return 1 - time_s / base_s


@figure("Share of communication hidden", "hidden_s / (hidden_s + exposed_s)")
def share_hidden(hidden_s: float, exposed_s: float) -> float | None:
    """Share of the time of a step with communication on rank 0 in which the rank computes as well; None without any.

    Hidden: the rank computes while at least one collective is in flight; several at once count once. Exposed: compute
    stands still for a collective, every wait counted, also those for a slower rank. A collective is in flight from when
    its lane comes to it until its result is there, waiting for the last rank to join included; on processors until a
    thread has noted that, up to a millisecond later, and longer on a loaded machine.
    """
    total = hidden_s + exposed_s
    return hidden_s / total if total else None


@figure("Bound of a step", "max(compute_s, lane_s)")
def bound(compute_s: float, lane_s: float) -> float:
    """Time that no schedule of the same work can beat: the longer of compute and of the busiest lane.

    Compute is the step less all waits, on rank 0. A lane is one queue of collectives along one axis of the grid, busy
    while one of them is in flight: of the ranks of a group the shortest time counts, as the others wait for it to join,
    and of all groups the longest.
    """
    return max(compute_s, lane_s)


@figure("Bound of a step, ranks sharing cores", "max(processor_s / cores, link_s)")
def bound_on_shared_cores(processor_s: float, cores: float, link_s: float) -> float:
    """Bound where the ranks of a machine have more threads than it has cores, so that a wait is mostly the turn of
    another rank: the longer of work and wire.

    Work: processor seconds of a step of all ranks on the machine, threads of their collectives included, over their
    cores. Wire: the bytes that the busiest node's network interface carried one way in a step, over its rate; 0 where
    that isn't known.
    """
    return max(processor_s / cores, link_s)


@figure("Step by its bound", "step_s / bound_s")
def step_by_bound(step_s: float, bound_s: float) -> float:
    """Time of a step over its bound: 1 is a step that could not be shorter with the same work."""
    return step_s / bound_s


@figure("Share of the greatest gain", "(1 - ratio) / (1 - min(bound_s, bound_none_s) / none_s)")
def share_of_greatest_gain(ratio: float, none_s: float, bound_s: float, bound_none_s: float) -> float | None:
    """Part of the greatest possible gain over no overlap that an overlap reaches. ratio: its time by that of none,
    paired.

    The least possible time is the bound of a step, with or without overlap: the smaller of the two, as competing for
    the machine makes both compute and collectives longer. None where nothing can be gained.
    """
    greatest = 1 - min(bound_s, bound_none_s) / none_s
    return (1 - ratio) / greatest if greatest > 0 else None


@figure("Trace by the record", "1 + (traced_s - recorded_s) / max(recorded_s, step_s / 20)")
def trace_by_record(traced_s: float, recorded_s: float, step_s: float) -> float:
    """Figure of a profiled step by its trace, over that of the run's own record.

    A figure below a twentieth of the step counts as if it were that. The trace agrees if all of the interval over six
    profiled steps or more, by their order, lies within 0.02 of 1, and disagrees if none of it does.
    """
    return 1 + (traced_s - recorded_s) / max(recorded_s, step_s / 20)


@figure("Idle share of a stage", "wait_s / step_s")
def idle_share(wait_s: float, step_s: float) -> float:
    """Part of a step in which a stage of a pipeline waits for other stages: for a message, and at the end of the step
    for the loss, the norm of the gradients and tied tables. Simulated: with tasks of their mean time on the stage,
    messages of no time, and all else as measured. Of several stages it is the mean.
    """
    return wait_s / step_s


@figure("Time in stages", "idle_s + work_s")
def time_in_stages(idle_s: float, work_s: float) -> float:
    """Time of a step in which stages of a pipeline work or wait for one another, both as means over the stages: the
    inter-layer parallel phase of axonn-ipdps22 Fig. 5. Neither sums of gradients over data that stand alone are in it
    nor the optimizer.
    """
    return idle_s + work_s


@figure("Bubble", "idle_s / work_s")
def bubble(idle_s: float, work_s: float) -> float:
    """Time of a step in which a stage of a pipeline waits for other stages, as in its idle share, over that of its
    tasks: forwards, backwards and weight gradients of all micro-batches, both as means over the stages.
    """
    return idle_s / work_s


@figure("Bubble by the formula", "(stages - 1) / micro_batches")
def formula_bubble(stages: float, micro_batches: float) -> float:
    """Bubble of GPipe and 1F1B where all stages take equally long, and messages no time: a stage waits for a
    micro-batch's tasks on all other stages. Of the zero bubble at most half of it is expected.
    """
    return (stages - 1) / micro_batches


@figure("Bubble off the expected one", "(idle_s - expected * work_s) / step_s")
def bubble_off(idle_s: float, work_s: float, step_s: float, expected: float) -> float:
    """Time in which stages wait beyond the expected bubble, as a part of a step; negative where they wait for less.

    GPipe and 1F1B pass where all of its interval lies within 5 % of a step, the zero bubble where none of it is above
    0; they fail where all of it is beyond. Else they are undecided, also where stages' work differs by over 2 %, or
    ranks share cores.
    """
    return (idle_s - expected * work_s) / step_s


@figure("Stages differ by", "longest_s / shortest_s - 1")
def stages_differ(longest_s: float, shortest_s: float) -> float:
    """Part by which the stage that works longest in a step works longer than the shortest, by medians over rounds."""
    return longest_s / shortest_s - 1
