"""What it takes."""

from engine.result.definition import figure


@figure("Energy per iteration", "joules / iterations")
def joules_per_iteration(joules: float, iterations: int) -> float:
    """It is the joules that one component took from the first counted iteration to the last, over their number.

    All its counters of the whole job are summed, each once however many ranks share what it counts: a device, a
    processor or a node. What lies between two steps is in it, saving checkpoints and profiled iterations are not. A
    counter counts whatever ran there, also devices that the job left idle and other jobs on the node. Counters are
    renewed about ten times a second: a measurement of a few seconds is only so exact. What isn't known on every node is
    not measured, and components are never added up: a node holds the others.
    """
    return joules / iterations


@figure("Tokens per joule", "tokens / joules")
def tokens_per_joule(tokens: float, joules: float) -> float:
    """It divides the tokens of the counted iterations, or the images of a network that sees them, by the energy that
    one component took (device, processor, memory or node). Only figures of the same component and scope compare.
    """
    return tokens / joules


@figure("Model flops per joule", "model_flops_per_s * time_s / joules_per_iteration")
def flops_per_joule(model_flops_per_s: float, time_s: float, joules_per_iteration: float) -> float:
    """It divides the model flops of an iteration by its energy: flop/s per watt, which networks of several sizes share
    as a scale.
    """
    return model_flops_per_s * time_s / joules_per_iteration


@figure("Mean power", "joules_per_iteration / time_s")
def mean_power(joules_per_iteration: float, time_s: float) -> float:
    """It is the watts of one component of the whole job, a little high where much lies between steps: the energy has
    that too.
    """
    return joules_per_iteration / time_s
