"""Intervals of time: what they are together and have in common. No torch."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

Interval = tuple[float, float]
_START, _END = itemgetter(0), itemgetter(1)


def union(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the same times as intervals that are ascending and don't touch.

    >>> union([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)])
    ((0.0, 3.0), (4.0, 5.0))
    """
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)


def common(one: Sequence[Interval], two: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the times that are in both; each is ascending and apart.

    >>> common([(0.0, 3.0)], [(1.0, 2.0), (2.5, 4.0)])
    ((1.0, 2.0), (2.5, 3.0))
    """
    found: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(two):
        start, end = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def length(intervals: Iterable[Interval]) -> float:
    """Return the seconds in all of them; they are apart.

    >>> length([(0.0, 3.0), (4.0, 4.5)])
    3.5
    """
    return sum(end - start for start, end in intervals)


def within(start: float, end: float, by: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return what lies from start to end of intervals, which are ascending and apart.

    >>> within(1.0, 5.0, [(0.0, 2.0), (4.0, 4.5), (6.0, 7.0)])
    ((1.0, 2.0), (4.0, 4.5))
    """
    near = by[bisect_right(by, start, key=_END) : bisect_left(by, end, key=_START)]
    return tuple((max(one[0], start), min(one[1], end)) for one in near)


def covered(start: float, end: float, by: Sequence[Interval]) -> float:
    """Return the seconds from start to end that lie in intervals, which are ascending and apart.

    >>> covered(1.0, 5.0, [(0.0, 2.0), (4.0, 4.5), (6.0, 7.0)])
    1.5
    """
    return length(within(start, end, by))
