"""References, culprits, and what figures and changes of the machine are."""

import numpy as np
import pytest

from reports.nights.changes import what_changed
from reports.nights.culprit import culprit
from reports.nights.figures import is_judged
from reports.nights.history import NightJob
from reports.nights.reference import reference_of, weighted_median
from systems.references import Key, worse_by


def test_in_a_reference_every_night_counts_the_same_however_often_it_was_run():
    steady = [[1.0 + 0.001 * (number % 5)] for number in range(20)]
    bad = [[1.5] * 5] * 5
    assert reference_of("s", [*steady, *bad]).median == pytest.approx(1.002, abs=0.0015)
    assert reference_of("s", [*steady, *bad]).jobs == 45


def test_a_weighted_median_has_half_of_the_weight_on_either_side():
    values = np.array([3.0, 1.0, 2.0, 4.0])
    assert weighted_median(values, np.ones(4)) == 2.5
    assert weighted_median(values[:3], np.ones(3)) == 2.0
    assert weighted_median(values, np.array([5.0, 1, 1, 1])) == 3.0


def test_what_changed_is_what_was_never_so_before():
    before = [{"torch": "2.9", "nodes": "a"}, {"torch": "2.9", "nodes": "b"}]
    since = [{"torch": "2.10", "nodes": "b", "modules": "nccl"}]
    assert what_changed(before, since) == ["torch 2.9 -> 2.10", "modules unset -> nccl"]
    assert what_changed([], since) == []
    assert what_changed(before, [{"nodes": "c, a"}, {"nodes": "c, d"}])[0] == "nodes: c was not among them before"
    assert what_changed(before, [{"nodes": "c"}, {"nodes": "d"}])[-1] != "nodes: c was not among them before"


def a_job(**parts: float) -> NightJob:
    """parts: what__which, as history.NightJob.parts has it."""
    told = {tuple(name.split("__")) if "__" in name else (name, ""): value for name, value in parts.items()}
    key = Key("cpu", "WeakScaling", "", "2x1x1x1", 2, "fp32", "")
    return NightJob(key, "n", None, False, "", {}, {}, told, (), 0.0)  # type: ignore[arg-type]


USUAL = {"compute": 1.0, "exposed__x": 0.2, "exposed__data": 0.1, "host__n0": 1.0, "host__n1": 1.0, "rate__x": 1e8}


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"compute": 1.3}, "compute: it takes +23.1 % of a step longer"),
        ({"compute": 1.3, "peak": 5e10}, "matrix products alone, whose rate fell by 50.0 %"),
        ({"exposed__x": 0.35, "compute": 1.01}, "the link: exposed communication along axis x"),
        ({"exposed__x": 0.35, "rate__x": 8e7}, "what the link carries along it fell by 20.0 %"),
        ({"exposed__data": 0.4}, "along axis data"),
        ({"host__n1": 1.6, "exposed__x": 0.8}, "one node: n1 computes +60.0 % longer"),
        ({"host__n0": 1.5, "host__n1": 1.5, "compute": 1.5}, "compute"),
        ({}, ""),
    ],
)
def test_the_culprit_is_named(now, named):
    before = [a_job(**USUAL, peak=1e11)] * 3
    found = culprit("WeakScaling", [a_job(**({**USUAL, "peak": 1e11} | now))], before)
    assert named in found if named else not found


def test_a_slow_node_is_named_although_every_night_has_other_nodes():
    before = [a_job(compute=1.0, **{f"host__a{night}": 1.0, f"host__b{night}": 1.02}) for night in range(5)]
    slow = a_job(compute=1.4, host__x=1.0, host__y=1.4, host__z=1.01)
    assert "one node: y computes +39.3 % longer than the others" in culprit("WeakScaling", [slow], before)
    once = a_job(compute=1.08, host__x=1.0, host__y=1.2, host__z=1.01)
    others = [a_job(compute=1.08, **{f"host__c{night}": 1.08, f"host__d{night}": 1.09}) for night in range(5)]
    assert "one node" not in culprit("WeakScaling", [once, *others], before)
    known = [a_job(**USUAL)] * 3
    assert "one node: n9" in culprit(
        "WeakScaling", [a_job(compute=1.6, host__n0=1.0, host__n1=1.0, host__n9=1.6)], known
    )
    like_ever = a_job(compute=1.4, host__x=1.4, host__y=1.42)
    assert "one node" not in culprit("WeakScaling", [like_ever], before)


def test_a_test_of_one_thing_names_it():
    assert "the link" in culprit("Bandwidth", [a_job()], [a_job()])
    assert "compute" in culprit("Peak", [a_job()], [a_job()])


@pytest.mark.parametrize(
    ("figure", "unit", "judged"),
    [
        ("time_per_iteration", "s", True),
        ("hardware_flops_per_s", "flop/s", False),
        ("best_flops_per_s", "flop/s", True),
        ("compute", "s", False),
        ("half_size", "B", False),
        ("paired_ratio_low", "x", False),
        ("paired_ratio", "x", True),
        ("communication_hidden", "%", False),
        ("speed_up_oar_ors", "x", False),
        ("step_by_bound", "x", False),
        ("step_by_bound_none", "x", False),
    ],
)
def test_figures_are_judged_once_each(figure, unit, judged):
    assert is_judged(figure, unit, frozenset({figure, "time_per_iteration"})) == judged


def test_which_way_is_worse():
    assert (worse_by("s"), worse_by("flop/s"), worse_by("%")) == (1, -1, 0)
