"""A link that is fitted to the times of another one is that one, as far as times can tell."""

from itertools import product

import pytest

from engine.comm.collective import Kind
from engine.simulator.collectives import Link, Taken, ring_s
from engine.simulator.link import RingTime, fit_link, fit_taken

KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
SIZES = [4096 * 8**power for power in range(6)]


def times(link: Link, lengths: tuple[int, ...], factor: float = 1.0) -> list[RingTime]:
    """Times of collectives of all sizes in rings of these lengths; factor: of every second one."""
    rings = product(lengths, SIZES, KINDS)
    return [
        RingTime(kind, size, ranks, ring_s(kind, size, ranks, link) * (factor if number % 2 else 1))
        for number, (ranks, size, kind) in enumerate(rings)
    ]


@pytest.mark.parametrize(
    "link",
    [Link(25e9), Link(117e6, step_s=1.3e-3), Link(25e9, half_bytes=3e6), Link(21e9, step_s=2e-5, half_bytes=3e5)],
)
def test_rings_of_two_lengths_tell_all_three_parameters(link: Link) -> None:
    found = fit_link(times(link, (2, 4)))
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-4)
    assert found.step_s == pytest.approx(link.step_s, rel=1e-3, abs=1e-9)
    assert found.half_bytes == pytest.approx(link.half_bytes, rel=1e-3, abs=10)
    assert found.fading == pytest.approx(0)


def test_rings_of_one_length_give_all_of_it_to_the_step_and_predict_the_same_times() -> None:
    measured = times(Link(21e9, step_s=2e-5, half_bytes=3e5), (4,))
    found = fit_link(measured)
    assert found.half_bytes == pytest.approx(0)
    assert found.step_s == pytest.approx(2e-5 + 3e5 / 21e9 / 4)
    for one in measured:
        assert ring_s(one.kind, one.num_bytes, one.ranks, found) == pytest.approx(one.time_s)


def test_small_messages_count_as_much_as_large_ones() -> None:
    found = fit_link(times(Link(117e6, step_s=1e-3), (2, 4), factor=1.2))
    assert found.step_s == pytest.approx(1.1e-3, rel=0.05)
    assert found.bytes_per_s == pytest.approx(117e6 / 1.1, rel=0.05)


def test_small_messages_that_are_faster_than_the_large_ones_make_nothing_negative() -> None:
    slow_when_large = [RingTime(Kind.ALL_REDUCE, size, 2, size / (4e9 if size < 1e6 else 1e9)) for size in SIZES]
    found = fit_link(slow_when_large)
    assert found.step_s == pytest.approx(0)
    assert found.half_bytes == pytest.approx(0)
    assert 1e9 < found.bytes_per_s < 4e9


def test_one_time_is_a_bandwidth_and_none_is_an_error() -> None:
    assert fit_link([RingTime(Kind.ALL_REDUCE, 8e9, 2, 4.0)]).bytes_per_s == pytest.approx(2e9)
    with pytest.raises(ValueError, match="at least one"):
        fit_link([])


@pytest.mark.parametrize("taken", [Taken(4e-4, 1.6e-9), Taken(0.0, 3e-10)])
def test_processor_seconds_tell_what_a_step_and_a_byte_take(taken: Taken) -> None:
    times = [RingTime(kind, n, ranks, taken.of(kind, n, ranks)) for ranks in (2, 4) for n in SIZES for kind in KINDS]
    found = fit_taken(times)
    assert found.byte_s == pytest.approx(taken.byte_s)
    assert found.step_s == pytest.approx(taken.step_s, abs=1e-12)
    gathered = RingTime(Kind.ALL_GATHER, 1e6, 4, taken.of(Kind.ALL_GATHER, 1e6, 4))
    assert gathered.time_s == pytest.approx(3 * taken.step_s + 3e6 * taken.byte_s), "three steps of a whole buffer each"
    alone = fit_taken([gathered])
    assert alone == Taken(0.0, pytest.approx(gathered.time_s / 3e6)), "one size tells no step"
    with pytest.raises(ValueError, match="at least one"):
        fit_taken([])
