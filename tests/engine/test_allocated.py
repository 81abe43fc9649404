"""What a piece of work is said to have held at most on a processor."""

import threading

import torch

from engine.measure.memory import Allocated, held

BIG = 1 << 20
CPU = torch.device("cpu")


def big() -> torch.Tensor:
    return torch.empty(BIG, dtype=torch.uint8)


def test_what_was_there_before_does_not_count_and_what_is_released_counts_no_longer() -> None:
    before = big()
    with Allocated(CPU) as memory:
        one = big()
        del one
        two, three = big(), big()
    assert memory.peak_bytes == two.nbytes + three.nbytes
    assert memory.held_bytes == two.nbytes + three.nbytes
    assert before.nbytes == BIG


def test_what_another_thread_releases_is_no_leak() -> None:
    """Threads of collectives do, and the profiler doesn't see it: a hundred would add up."""
    with Allocated(CPU) as memory:
        for _ in range(100):
            held = [big()]
            other = threading.Thread(target=held.clear)
            other.start()
            other.join()
    assert memory.peak_bytes is not None
    assert memory.peak_bytes <= 10 * BIG


def test_an_allocation_over_parts_of_two_that_are_gone_takes_the_place_of_both() -> None:
    """Two adjacent allocations of eight bytes, with no release seen."""
    two = [(1, 100, 8), (2, 108, 8)]
    assert held(two).most == 16
    assert held([*two, (3, 104, 8), (4, 200, 4)]).most == 16, "eight, and four elsewhere"
    assert held([*two, (3, 116, 4)]).most == 20, "beside them"
    assert held([*two, (3, 96, 4)]).most == 20
    assert held([*two, (3, 100, -8), (4, 100, 4)]).most == 16
    assert held([(1, 0, -64), (2, 100, 80)]).most == 16, "what was there before and is released makes room"
