"""Metrics of one device, its links, its matrix products and its energy."""

from collections.abc import Sequence

from engine.result.metrics.definition import figure


@figure("Empirical peak", "2 * size**3 * multiplications / time_s")
def gemm_rate(size: int, multiplications: float, time_s: float) -> float:
    """Best rate over sizes of square matrix products, in flop/s of one device; fp32 is without TF32.

    A system's file gives it with its source. Without it the job measures before it trains: every rank multiplies at
    once, with as many threads as it trains with, for half a second a size, and their joint rate is divided by their
    number. Alone, `bench gemm` takes the median of several samples of each size.
    """
    return 2 * size**3 * multiplications / time_s


@figure("Rate of a mode", "flops_per_s / nn_flops_per_s")
def mode_rate(flops_per_s: float, nn_flops_per_s: float) -> float:
    """Rate of matrix products whose factors lie in a mode's way, over that with both row by row.

    The largest size that the time budget has room for is timed three times in each mode, in turns; the middle counts.
    """
    return flops_per_s / nn_flops_per_s


@figure("Formula over counted flops", "formula / counted")
def formula_over_counted(formula: int, counted: int) -> float:
    """Flops of a training step by the formula that shares of a peak take, over those that torch's counter of operators
    finds.

    Products are counted by their shapes, attention's too, as they are dispatched; no counter of a device is read.
    """
    return formula / counted


@figure("Memory bandwidth", "arrays * array_bytes * calls / time_s")
def memory_bandwidth(arrays: int, array_bytes: float, calls: float, time_s: float) -> float:
    """Bytes per second of one device in a kernel of STREAM, which counts each array once that the kernel reads or
    writes: two for copy and scale, three for add and triad. What a cache fetches only to overwrite it isn't counted.

    Numbers have 64 bits; each array takes at least four times the last-level cache where memory allows it. The best and
    the median of several repeats are given, the mean of ranks that measure at once.
    """
    return arrays * array_bytes * calls / time_s


@figure("Share of the advertised memory bandwidth", "bytes_per_s / advertised_bytes_per_s")
def of_advertised_bandwidth(bytes_per_s: float, advertised_bytes_per_s: float) -> float:
    """Measured bandwidth over the vendor's figure in the system's file."""
    return bytes_per_s / advertised_bytes_per_s


@figure("Memory by the plan", "taken_bytes / planned_bytes")
def of_planned_memory(taken_bytes: float, planned_bytes: float) -> float:
    """Most memory of a training in the device's allocator, over what `check` and --grid auto count: weights, gradients,
    moments, activations and logits at the fullest moment of a step, without a kernel's own workspace.
    """
    return taken_bytes / planned_bytes


@figure("Time of a tiny operator", "time_s / operators")
def per_operator(time_s: float, operators: int) -> float:
    """Seconds to add to one number, over all such calls in a row of a sample: the median, 5th and 95th percentile.

    Dispatch is the host's time until a call returns, on processors with the addition itself. Completion: on an
    accelerator, from the call until the host knows of its end. Graph: the same of a captured graph, over its operators.
    """
    return time_s / operators


@figure("Bandwidth of a ring", "moved_bytes / time_s")
def ring_bandwidth(moved_bytes: float, time_s: float) -> float:
    """Bytes per second that each rank of a ring sends to the next, in one direction (axonn-sc24 V-B): the median of
    several samples, of groups measured at once on the slowest rank.

    A rank of G is taken to send n (G - 1) / G of a buffer of n bytes (in or out, whichever is larger) in an all-gather
    or a reduce-scatter, and twice that in an all-reduce, whatever the library's algorithm is. The three collectives
    together: all that they send over the sum of their times.
    """
    return moved_bytes / time_s


@figure("Bandwidth of a broadcast", "message_bytes / time_s")
def broadcast_bandwidth(message_bytes: float, time_s: float) -> float:
    """Bytes of a message from the first of some ranks to the others, by the time of the slowest of these: the median of
    several samples, with nothing beside it (colossal-ai, Fig. 10).
    """
    return message_bytes / time_s


@figure("Rate of a product", "2 * m * n * k / time_s")
def product_rate(m: int, n: int, k: int, time_s: float) -> float:
    """Flop/s of one rank in a matrix product of [m, k] by [k, n], with the copies of operands that its mode takes.

    Ranks that share processors multiply at once, as they train; one accelerator stands for all. Operands are drawn from
    a normal distribution.
    """
    return 2 * m * n * k / time_s


@figure("Share of choices that hold", "sum(high <= 1.03 for low, high in shapes) / len(shapes)")
def choices_that_hold(shapes: Sequence[tuple[float, float]]) -> float:
    """Share of tuned shapes whose layers take at most 1.03 times as long as in the ways that were fastest when first
    timed.

    A second timing in turns decides, by the interval of the median ratio over its rounds: where it reaches beyond 1.03
    the choice is not known to hold. What was chosen and fastest takes 1.0 times as long by definition.
    """
    return sum(high <= 1.03 for _, high in shapes) / len(shapes)


@figure("Energy per iteration", "joules / iterations")
def joules_per_iteration(joules: float, iterations: int) -> float:
    """Joules of one component from the first counted iteration to the last, over their number.

    All its counters of the whole job are summed, each once however many ranks share it, with whatever ran there: also
    idle devices and other jobs of the node. What lies between two steps is in it, without checkpoints and profiled
    iterations. Counters are renewed about ten times a second, so a few seconds are only so exact. What isn't known on
    every node is not measured; components are never added up, as a node includes the others.
    """
    return joules / iterations


@figure("Tokens per joule", "tokens / joules")
def tokens_per_joule(tokens: float, joules: float) -> float:
    """Tokens of the counted iterations, or images of a network that sees them, over the energy of one component
    (device, processor, memory or node). Only figures of the same component and scope compare.
    """
    return tokens / joules


@figure("Model flops per joule", "model_flops_per_s * time_s / joules_per_iteration")
def flops_per_joule(model_flops_per_s: float, time_s: float, joules_per_iteration: float) -> float:
    """Model flops of an iteration over its energy: flop/s per watt, a scale that networks of all sizes share."""
    return model_flops_per_s * time_s / joules_per_iteration


@figure("Mean power", "joules_per_iteration / time_s")
def mean_power(joules_per_iteration: float, time_s: float) -> float:
    """Watts of one component of the whole job, by its energy per iteration, which has what lies between steps too."""
    return joules_per_iteration / time_s
