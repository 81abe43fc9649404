"""What one device reaches, and what it sends to others."""

from engine.result.definition import figure


@figure("Empirical peak", "2 * size**3 * multiplications / time_s")
def gemm_rate(size: int, multiplications: float, time_s: float) -> float:
    """It is the best over sizes of square matrix products, in flop/s of one device.

    A system's file gives it with its source. Where the file has none for the number format, the job measures it
    before it trains: every rank multiplies at once, with as many threads as it trains with, for half a second a size,
    and what they reach together is divided by their number. Alone, `bench gemm` takes the median of several samples of
    each size. fp32 is without TF32.
    """
    return 2 * size**3 * multiplications / time_s


@figure("Rate of a mode", "flops_per_s / nn_flops_per_s")
def mode_rate(flops_per_s: float, nn_flops_per_s: float) -> float:
    """It divides what matrix products reach whose factors lie in a mode's way by what they reach with both row by row.

    One size is timed in all modes, in turns, three times each, and the middle rate of a mode counts. The size is the
    largest that was measured for which the time budget has room.
    """
    return flops_per_s / nn_flops_per_s


@figure("Memory bandwidth", "arrays * array_bytes * calls / time_s")
def memory_bandwidth(arrays: int, array_bytes: float, calls: float, time_s: float) -> float:
    """It is bytes per second of one device in a kernel of STREAM, as STREAM counts them: each array that the kernel
    reads or writes once, two for copy and scale, three for add and triad.

    What a cache fetches only to overwrite it isn't counted. The numbers have 64 bits; each array takes at least four
    times the last-level cache where memory allows it. The best and the median of several repeats are given. Where ranks
    measure at once it is the mean of what they reach.
    """
    return arrays * array_bytes * calls / time_s


@figure("Share of the advertised memory bandwidth", "bytes_per_s / advertised_bytes_per_s")
def of_advertised_bandwidth(bytes_per_s: float, advertised_bytes_per_s: float) -> float:
    """It divides a measured bandwidth by the vendor's figure in the system's file."""
    return bytes_per_s / advertised_bytes_per_s


@figure("Memory by the plan", "taken_bytes / planned_bytes")
def of_planned_memory(taken_bytes: float, planned_bytes: float) -> float:
    """It divides the most that the device's allocator held of a training by what `check` and --grid auto count for it:
    weights, gradients, moments, activations and logits at the fullest moment of a step, without what a kernel needs for
    itself.
    """
    return taken_bytes / planned_bytes


@figure("Time of a tiny operator", "time_s / operators")
def per_operator(time_s: float, operators: int) -> float:
    """It is the seconds to add to one number, over as many such calls in a row as a sample has.

    Dispatch is the host's time until a call returns: on an accelerator nothing waits for its end, on processors the
    addition itself is in it. Completion: on an accelerator, from the call until the host knows of its end. Graph: the
    same of a captured graph, over its operators. The median, the 5th and the 95th percentile of many samples are given.
    """
    return time_s / operators


@figure("Bandwidth of a ring", "moved_bytes / time_s")
def ring_bandwidth(moved_bytes: float, time_s: float) -> float:
    """It is the bytes per second that each rank of a ring sends to the next, in one direction (axonn-sc24 V-B).

    moved_bytes is what a rank of a ring algorithm sends: of G ranks and a buffer of n bytes (that which goes in or that
    which comes out, whichever is larger) n (G - 1) / G in an all-gather or a reduce-scatter and twice that in an
    all-reduce, whatever the library's algorithm is. Groups that are measured at once do the same at the same time, and
    the slowest rank's time counts. The median of several samples is given; for the three collectives together, what all
    of them send over the sum of their times.
    """
    return moved_bytes / time_s
