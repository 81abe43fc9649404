"""Counters of energy: which files are read, what they count between two readings, and what can't be known."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from counter_files import MEMORY_RANGE_J, PACKAGE_RANGE_J, cray, rapl, zone

from engine.energy import devices, pm_counters
from engine.energy import rapl as rapl_files
from engine.energy.counter import Count, Counter, Found, Unreadable
from engine.energy.meter import Device, Meter, find
from engine.energy.power import PowerSum


def values(found: Found) -> dict[str, list[float]]:
    """What the counters say now, by component."""
    read: dict[str, list[float]] = {}
    for counter in found.counters:
        read.setdefault(counter.component, []).append(counter.read())
    return read


def saying(*joules: float, round_j: float | None = None, renewed_s: float = 0.001) -> Counter:
    """A counter that says these one after the other."""
    told = iter(joules)
    return Counter("node", "a test", "the test", lambda: next(told), renewed_s, round_j)


def seconds(step: float = 1.0) -> Callable[[], float]:
    """A clock that goes on by so much at every look."""
    return map(float, itertools.count(0, step)).__next__


def test_packages_and_memory_are_read_once_and_their_parts_are_not(tmp_path: Path) -> None:
    rapl(tmp_path)
    found = rapl_files.find(tmp_path)
    assert values(found) == {"processor": pytest.approx([1000, 2000]), "memory": pytest.approx([300, 400])}
    assert [counter.round_j for counter in found.counters] == pytest.approx(
        [PACKAGE_RANGE_J, PACKAGE_RANGE_J, MEMORY_RANGE_J, MEMORY_RANGE_J]
    )
    assert found.missing == {}


def test_a_processor_without_a_zone_of_memory_says_so(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0-die-0", 7.0)
    found = rapl_files.find(tmp_path)
    assert values(found) == {"processor": pytest.approx([7.0])}
    assert "RAPL counts no energy of memory here" in str(found.missing["memory"])


def test_of_two_packages_one_that_can_not_be_read_leaves_no_half_sum(tmp_path: Path) -> None:
    rapl(tmp_path)
    (tmp_path / "class/powercap/intel-rapl:1/energy_uj").write_text("")
    found = rapl_files.find(tmp_path)
    assert found.components == {"memory"}
    assert "intel-rapl:1/energy_uj can't be read as a number" in str(found.missing["processor"])


@pytest.mark.parametrize("stamp", ["", " 1700000000123456 us"])
def test_a_cray_node_is_read_by_its_files(tmp_path: Path, stamp: str) -> None:
    cray(tmp_path, node=9000, processor=900, memory=300, devices=(1000, 2000, 3000, 4000), stamp=stamp)
    assert values(pm_counters.find(tmp_path)) == {
        "device": [1000, 2000, 3000, 4000],
        "processor": [900],
        "memory": [300],
        "node": [9000],
    }


def test_a_cray_node_with_one_sum_of_its_accelerators_is_read_too(tmp_path: Path) -> None:
    folder = cray(tmp_path, node=9, processor=1, memory=1, devices=(5,))
    (folder / "accel0_energy").unlink()
    assert values(pm_counters.find(tmp_path))["device"] == [5]


def test_a_file_that_says_something_else_is_no_zero(tmp_path: Path) -> None:
    folder = cray(tmp_path, node=9, processor=1, memory=1, devices=())
    (folder / "energy").write_text("12 W\n")
    found = pm_counters.find(tmp_path)
    assert "says '12 W', not a number of joules" in str(found.missing["node"])
    assert found.components == {"processor", "memory"}


def test_where_both_count_cray_is_taken_and_accelerators_only_of_a_job_that_uses_them(tmp_path: Path) -> None:
    rapl(tmp_path)
    cray(tmp_path, node=90, processor=9, memory=3, devices=(10, 20))
    alone = find(tmp_path, None, of_machine=True, on_devices=False)
    assert values(alone) == {"processor": [9], "memory": [3], "node": [90]}
    both = find(tmp_path, Device(0, ""), of_machine=True, on_devices=True)
    assert values(both) == {"processor": [9], "memory": [3], "node": [90], "device": [10, 20]}
    assert find(tmp_path, Device(1, ""), of_machine=False, on_devices=True).counters == ()


def test_a_machine_without_counters_says_why_of_each_component(tmp_path: Path) -> None:
    found = find(tmp_path, None, of_machine=True, on_devices=False)
    assert found.counters == ()
    assert set(found.missing) == {"processor", "memory", "node"}
    assert not any(why.mend for why in found.missing.values())


def test_an_accelerator_that_zeus_can_not_read_says_why() -> None:
    why = devices.find(0, "").missing["device"]
    assert str(why).startswith(("zeus can't read it: ", "zeus, which reads it, is not installed"))


class Cards:
    """Has of zeus' GPUs what is called here, in its units: millijoules and milliwatts; no card was at hand."""

    def __init__(self, *, counts: bool) -> None:
        self.gpus, self.counts = (), counts

    def supports_get_total_energy_consumption(self, index: int) -> bool:
        return self.counts

    def get_total_energy_consumption(self, index: int) -> int:
        return 5_000 + 1_000 * index

    def get_instant_power_usage(self, index: int) -> int:
        raise RuntimeError("not supported\nby this card")

    def get_average_power_usage(self, index: int) -> int:
        return 300_000


def test_a_device_is_read_by_its_counter_or_else_by_its_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus.device.gpu", SimpleNamespace(get_gpus=lambda: Cards(counts=True)))  # type: ignore[arg-type]
    (counter,) = devices.find(2, "").counters
    assert (counter.read(), counter.sample_s) == (pytest.approx(7.0), None)
    monkeypatch.setitem(sys.modules, "zeus.device.gpu", SimpleNamespace(get_gpus=lambda: Cards(counts=False)))  # type: ignore[arg-type]
    (summed,) = devices.find(2, "").counters
    first = summed.read()
    assert summed.read() >= first >= 0
    assert summed.sample_s is not None
    summed.close()
    monkeypatch.setattr(Cards, "get_average_power_usage", Cards.get_instant_power_usage)
    assert str(devices.find(2, "").missing["device"]) == "AMD SMI doesn't tell it: not supported"


def test_a_counter_that_begins_anew_has_gone_on() -> None:
    count = Count(saying(900.0, 30.0, 40.0, round_j=1000.0))
    for call, now in ((count.start, 0.0), (count.stop, 0.5), (count.stop, 0.9)):
        call(now)
    assert count.joules == pytest.approx(140.0)


def test_a_counter_that_may_have_gone_round_twice_is_not_known() -> None:
    count = Count(saying(900.0, 950.0, round_j=1000.0))
    count.start(0.0)
    with pytest.raises(Unreadable, match="begins anew every 1,000 J and was not read for 2 s"):
        count.stop(2.0)


def test_a_counter_that_does_not_go_round_never_counts_backwards() -> None:
    count = Count(saying(900.0, 30.0))
    count.start(0.0)
    with pytest.raises(Unreadable, match="it was reset"):
        count.stop(1.0)


def test_only_what_is_between_a_start_and_a_stop_counts() -> None:
    meter = Meter(Found((saying(10.0, 15.0, 115.0, 122.0),)), seconds())
    meter.start()
    with meter.paused():
        pass
    meter.stop()
    reading = meter.readings()["node"]
    assert (reading.joules, reading.counters) == (pytest.approx(12.0), 1)
    assert meter.seconds > 0


def test_between_steps_only_counters_that_go_round_are_read_and_seldom() -> None:
    reads = [0, 0]

    def counting(place: int, round_j: float | None) -> Counter:
        def read() -> float:
            reads[place] += 1
            return 100.0 * reads[place]

        return Counter("node", "a test", "the test", read, 0.001, round_j)

    meter = Meter(Found((counting(0, 1e9), counting(1, None))), seconds())
    meter.start()
    for _ in range(30):
        meter.between_steps()
    assert 1 < reads[0] < 5
    assert reads[1] == 1


@pytest.mark.parametrize(
    ("counter", "step_s", "why"),
    [
        (saying(5.0, 5.0), 1.0, "no counter of a test moved in"),
        (saying(5.0, 6.0, renewed_s=0.1), 0.1, "is renewed every 0.1 s, too rarely for the 0.3 s"),
    ],
)
def test_what_stands_still_or_is_too_short_is_not_measured(counter: Counter, step_s: float, why: str) -> None:
    meter = Meter(Found((counter,)), seconds(step_s))
    meter.start()
    meter.stop()
    reading = meter.readings()["node"]
    assert reading.joules is None
    assert why in reading.unmeasured


def test_each_stretch_between_pauses_has_to_be_long_enough_for_its_counter() -> None:
    meter = Meter(Found((saying(*range(10), renewed_s=0.1),)), seconds(0.1))
    meter.start()
    for _ in range(4):
        with meter.paused():
            pass
    meter.stop()
    assert meter.seconds > 10 * 0.1, "enough for one stretch"
    assert "too rarely for the" in (meter.readings()["node"].unmeasured or "")


def test_a_counter_that_fails_on_the_way_ends_its_component_and_no_other() -> None:
    def fail() -> Iterator[float]:
        yield 1.0
        raise Unreadable("it is gone")

    told = fail()
    lost = Counter("memory", "a test", "the test", lambda: next(told), 0.001)
    meter = Meter(Found((lost, saying(1.0, 4.0))), seconds())
    meter.start()
    meter.stop()
    readings = meter.readings()
    assert (readings["memory"].joules, readings["memory"].unmeasured) == (None, "it is gone")
    assert readings["node"].joules == pytest.approx(3.0)


def test_power_is_summed_over_time() -> None:
    watts = iter([100.0, 300.0, 300.0])
    summed = PowerSum(lambda: next(watts), seconds(2.0))
    assert summed.read() == 0.0
    summed.sample()
    assert summed.read() == pytest.approx(2 * 200.0 + 2 * 300.0)


def test_a_sample_that_failed_leaves_no_sum() -> None:
    def watts() -> float:
        raise Unreadable("the card is lost")

    summed = PowerSum(watts, seconds())
    summed.sample()
    with pytest.raises(Unreadable, match="the card is lost"):
        summed.read()
