"""How long the stages of a pipeline stand still."""

from engine.result.definition import figure


@figure("Idle share of a stage", "wait_s / step_s")
def idle_share(wait_s: float, step_s: float) -> float:
    """It is the part of a step in which a stage of a pipeline waits for other stages: for a message, and at the end of
    the step for the loss, the norm of the gradients and tied tables. Waits within a stage don't count. Simulated: for
    all that isn't a task the step takes as long as was measured, each task its mean time on its stage, and a message
    none. Of several stages it is the mean.
    """
    return wait_s / step_s


@figure("Bubble", "idle_s / work_s")
def bubble(idle_s: float, work_s: float) -> float:
    """It is the time of a step in which a stage of a pipeline waits for other stages, as in its idle share, by that in
    which it carries out its tasks: forwards, backwards and weight gradients of all micro-batches. Both are means over
    the stages. What else a step takes, such as reading the batch and the optimizer, is in neither.
    """
    return idle_s / work_s


@figure("Bubble by the formula", "(stages - 1) / micro_batches")
def formula_bubble(stages: float, micro_batches: float) -> float:
    """It is the bubble that GPipe and 1F1B have where all stages take equally long, and messages no time: from the
    first stage's first task until the last stage's, and likewise back, a stage waits for as long as a micro-batch's
    tasks take on one stage less than there are. Of the zero bubble at most half of it is expected.
    """
    return (stages - 1) / micro_batches


@figure("Bubble off the expected one", "(idle_s - expected * work_s) / step_s")
def bubble_off(idle_s: float, work_s: float, step_s: float, expected: float) -> float:
    """It is the time in which stages wait beyond the expected bubble, as a part of a step; negative where they wait for
    less. GPipe and 1F1B pass where all of its interval lies within 5 % of a step, the zero bubble where none of it is
    above 0; they fail where all of it is beyond, and else are undecided. So is whatever was measured where the stage
    that works longest works over 2 % longer than the one that works shortest, or where ranks share cores.
    """
    return (idle_s - expected * work_s) / step_s


@figure("Stages differ by", "longest_s / shortest_s - 1")
def stages_differ(longest_s: float, shortest_s: float) -> float:
    """It says how much longer the stage that works longest on its tasks of a step works than the one that works
    shortest, each by the median of its rounds.
    """
    return longest_s / shortest_s - 1
