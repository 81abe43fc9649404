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
