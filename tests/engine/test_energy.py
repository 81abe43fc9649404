"""Energy: which files are read, what counters count between two readings, and the sum over a job's machines."""

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from counter_files import MEMORY_RANGE_J, PACKAGE_RANGE_J, cray, rapl, zone
from engine_command import SMALL, finish, start, train
from real_ranks import run_processes
from test_checkpoint import _config as config

from engine.comm.funnel import Comm
from engine.energy import devices
from engine.energy.counter import Count, Counter, Found, Unreadable
from engine.energy.devices import PowerSum
from engine.energy.meter import Meter, MeteredDevice, find
from engine.energy.sysfs import find_cray, find_rapl
from engine.grid import Grid
from engine.measure.machine import SYSFS
from engine.result.schema import read
from engine.result.schema.step import Component, ComponentEnergy, Energy
from engine.training import energy


def values(found: Found) -> dict[str, list[float]]:
    """Return what the counters say now, by component."""
    read: dict[str, list[float]] = {}
    for counter in found.counters:
        read.setdefault(counter.component, []).append(counter.read())
    return read


def saying(*joules: float, round_j: float | None = None, renewed_s: float = 0.001) -> Counter:
    """Make a counter that says these one after the other."""
    told = iter(joules)
    return Counter("node", "a test", "the test", lambda: next(told), renewed_s, round_j)


def seconds(step: float = 1.0) -> Callable[[], float]:
    """Make a clock that goes on by a step at every look."""
    return map(float, itertools.count(0, step)).__next__


def test_packages_and_memory_are_read_once_and_their_parts_are_not(tmp_path: Path) -> None:
    rapl(tmp_path)
    found = find_rapl(tmp_path)
    assert values(found) == {"processor": pytest.approx([1000, 2000]), "memory": pytest.approx([300, 400])}
    assert [counter.round_j for counter in found.counters] == pytest.approx(
        [PACKAGE_RANGE_J, PACKAGE_RANGE_J, MEMORY_RANGE_J, MEMORY_RANGE_J]
    )
    assert found.missing == {}


def test_rapl_that_lacks_a_zone_or_can_not_be_read_makes_no_half_sum(tmp_path: Path) -> None:
    zone(tmp_path / "a", "intel-rapl:0", "package-0-die-0", 7.0)
    found = find_rapl(tmp_path / "a")
    assert values(found) == {"processor": pytest.approx([7.0])}
    assert "no energy of memory" in str(found.missing["memory"])
    rapl(tmp_path)
    (tmp_path / "class/powercap/intel-rapl:1/energy_uj").write_text("")
    found = find_rapl(tmp_path)
    assert found.components == {"memory"}
    assert "intel-rapl:1/energy_uj says ''" in str(found.missing["processor"])


@pytest.mark.parametrize("stamp", ["", " 1700000000123456 us"])
def test_a_cray_node_is_read_by_its_files(tmp_path: Path, stamp: str) -> None:
    cray(tmp_path, node=9000, processor=900, memory=300, devices=(1000, 2000, 3000, 4000), stamp=stamp)
    assert values(find_cray(tmp_path)) == {
        "device": [1000, 2000, 3000, 4000],
        "processor": [900],
        "memory": [300],
        "node": [9000],
    }


def test_a_cray_node_with_one_sum_of_its_accelerators_is_read_and_a_file_of_something_else_is_no_zero(
    tmp_path: Path,
) -> None:
    folder = cray(tmp_path, node=9, processor=1, memory=1, devices=(5,))
    (folder / "accel0_energy").unlink()
    (folder / "energy").write_text("12 W\n")
    found = find_cray(tmp_path)
    assert values(found) == {"device": [5], "processor": [1], "memory": [1]}
    assert "says '12 W'" in str(found.missing["node"])


def test_where_both_count_cray_is_taken_and_accelerators_only_of_a_job_that_uses_them(tmp_path: Path) -> None:
    rapl(tmp_path)
    cray(tmp_path, node=90, processor=9, memory=3, devices=(10, 20))
    alone = find(tmp_path, None, of_machine=True, on_devices=False)
    assert values(alone) == {"processor": [9], "memory": [3], "node": [90]}
    both = find(tmp_path, MeteredDevice(0, ""), of_machine=True, on_devices=True)
    assert values(both) == {"processor": [9], "memory": [3], "node": [90], "device": [10, 20]}
    assert find(tmp_path, MeteredDevice(1, ""), of_machine=False, on_devices=True).counters == ()


def test_a_machine_without_counters_says_why_of_each_component(tmp_path: Path) -> None:
    found = find(tmp_path, None, of_machine=True, on_devices=False)
    assert found.counters == ()
    assert set(found.missing) == {"processor", "memory", "node"}
    assert not any(why.mend for why in found.missing.values())


def test_an_accelerator_that_zeus_can_not_read_says_why() -> None:
    assert str(devices.find(0, "").missing["device"]).startswith("zeus")


class Cards:
    """GPUs of zeus, in its units: millijoules and milliwatts; no card was at hand."""

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
    def install(*, counts: bool) -> None:
        module = SimpleNamespace(get_gpus=lambda: Cards(counts=counts))
        monkeypatch.setitem(sys.modules, "zeus.device.gpu", module)  # type: ignore[arg-type]

    install(counts=True)
    (counter,) = devices.find(2, "").counters
    assert (counter.read(), counter.sample_s) == (pytest.approx(7.0), None)
    install(counts=False)
    (summed,) = devices.find(2, "").counters
    first = summed.read()
    assert summed.read() >= first >= 0
    assert summed.sample_s is not None
    summed.close()
    monkeypatch.setattr(Cards, "get_average_power_usage", Cards.get_instant_power_usage)
    assert str(devices.find(2, "").missing["device"]).endswith("tell it: not supported")


def test_a_counter_that_begins_anew_has_gone_on_and_one_that_can_not_is_unreadable() -> None:
    count = Count(saying(900.0, 30.0, 40.0, round_j=1000.0))
    for call, now in ((count.start, 0.0), (count.stop, 0.5), (count.stop, 0.9)):
        call(now)
    assert count.joules == pytest.approx(140.0)
    for counter, now, why in (
        (saying(900.0, 950.0, round_j=1000.0), 2.0, "every 1,000 J .* 2 s"),
        (saying(900.0, 30.0), 1.0, "it was reset"),
    ):
        count = Count(counter)
        count.start(0.0)
        with pytest.raises(Unreadable, match=why):
            count.stop(now)


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
    [(saying(5.0, 5.0), 1.0, "no counter of"), (saying(5.0, 6.0, renewed_s=0.1), 0.1, "too rarely for the 0.3 s")],
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


def test_power_is_summed_over_time_and_a_sample_that_failed_leaves_no_sum() -> None:
    watts = iter([100.0, 300.0, 300.0])
    summed = PowerSum(lambda: next(watts), seconds(2.0))
    assert summed.read() == 0.0
    summed.sample()
    assert summed.read() == pytest.approx(2 * 200.0 + 2 * 300.0)

    def lost() -> float:
        raise Unreadable("the card is lost")

    summed = PowerSum(lost, seconds())
    summed.sample()
    with pytest.raises(Unreadable, match="card is lost"):
        summed.read()


def part(told: Energy | None, component: Component) -> ComponentEnergy:
    assert told is not None
    return next(part for part in told.components if part.component == component)


def metered(comm: Comm, roots: list[Path], machines: list[str]) -> str:
    """Measure four iterations of 100 tokens in which rank 0 lets every root's counters go on: by 30 J and 50 J of
    packages, 7 J of memory. roots, machines: of each rank.
    """
    os.environ[SYSFS] = str(roots[comm.rank])
    energy.kernel_name = lambda: machines[comm.rank]  # type: ignore[assignment]
    job = energy.JobMeter(comm, "auto", seconds())
    comm.barrier()
    job.meter.start()
    comm.barrier()
    if comm.rank == 0:
        for root in set(roots):
            rapl(root, packages=(1030.0, 2050.0), memory=(307.0, 400.0))
    comm.barrier()
    job.meter.stop()
    return job.result(4, 100).model_dump_json()


def test_ranks_that_share_a_machine_count_it_once(tmp_path: Path) -> None:
    rapl(tmp_path)
    told = run_processes(Grid(z=2), metered, [tmp_path] * 2, ["one"] * 2)
    for found in map(Energy.model_validate_json, told):
        processor = part(found, "processor")
        assert (processor.counters, processor.machines, processor.unmeasured) == (2, 1, None)
        assert processor.joules == pytest.approx(80.0)
        assert processor.joules_per_iteration == pytest.approx(20.0)
        assert processor.tokens_per_joule == pytest.approx(400 / 80.0)
        assert part(found, "memory").joules == pytest.approx(7.0)
        assert part(found, "node").joules is None


def test_machines_are_added_up_and_one_that_does_not_know_leaves_no_half_sum(tmp_path: Path) -> None:
    one, two, lacks = (tmp_path / name for name in ("one", "two", "lacks"))
    rapl(one)
    rapl(two)
    zone(lacks, "intel-rapl:0:1", "dram", 300.0)
    told = run_processes(Grid(data=2), metered, [one, two], ["one", "two"])
    processor = part(Energy.model_validate_json(told[1]), "processor")
    assert (processor.counters, processor.machines) == (4, 2)
    assert processor.joules == pytest.approx(160.0)
    rapl(one)
    told = run_processes(Grid(data=2), metered, [one, lacks], ["one", "two"])
    processor = part(Energy.model_validate_json(told[0]), "processor")
    assert processor.joules is None
    assert "(1 of 2 " in str(processor.unmeasured)


def counted(comm: Comm, folder: Path) -> float | None:
    """Train with a counter that counts 7 J an optimizer step, and 1000 J a checkpoint."""
    from trainers import trainer_of

    from engine.training.iterations import Measurements, run_iterations

    saving = replace(config(folder, comm.grid), warmup=2, iterations=6, save=folder, save_every=2)
    assert comm.recorder is not None
    trainer = trainer_of(saving, comm)
    saved = lambda: len(list(folder.glob("step-*")))  # noqa: E731
    joules = Counter("node", "a test", "the test", lambda: 7.0 * trainer.done + 1000.0 * saved(), 0.001)
    meter = Meter(Found((joules,)), seconds())
    run_iterations(trainer, saving, Measurements(), meter)
    assert saved() == 3
    return meter.readings()["node"].joules


def test_the_warm_up_and_checkpoints_do_not_count(tmp_path: Path) -> None:
    assert run_processes(Grid(), counted, tmp_path) == [pytest.approx(4 * 7.0)]


def test_without_a_counter_a_run_says_not_measured_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SYSFS, str(tmp_path))
    codes, said = train(1, *SMALL, "--iterations", "3", "--out", str(tmp_path / "result.json"))
    assert codes == [0]
    assert "Energy" not in said[0]
    found = read(tmp_path / "result.json").energy
    for component in ("processor", "memory", "node"):
        assert part(found, component).joules is None
        assert part(found, component).tokens_per_joule is None
        assert str(tmp_path) in (part(found, component).unmeasured or "")


def test_energy_that_is_turned_off_is_not_measured(tmp_path: Path) -> None:
    codes, _ = train(1, *SMALL, "--iterations", "3", "--energy", "off", "--out", str(tmp_path / "result.json"))
    assert codes == [0]
    found = read(tmp_path / "result.json").energy
    assert found is not None
    assert found.components == ()
    assert "--energy off" in str(found.unmeasured)


def without_rights() -> list[str]:
    """Return a command that starts another one for which a file's mode counts, also where root runs the tests."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root can read everything, and there is no setpriv to give that up")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def test_a_counter_of_root_is_told_in_one_sentence_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl(tmp_path, memory=())
    for file in tmp_path.rglob("energy_uj"):
        file.chmod(0)
    monkeypatch.setenv(SYSFS, str(tmp_path))
    out = str(tmp_path / "result.json")
    options = (*SMALL, "--grid", "1x1x2x1", "--iterations", "3", "--out", out)
    codes, said = finish(start(2, "train", *options, under=without_rights()))
    assert codes == [0, 0]
    told = [line for text in said for line in text.splitlines() if "nergy" in line]
    file = tmp_path / "class/powercap/intel-rapl:0/energy_uj"
    (line,) = told
    assert f"{file} may only be" in line
    processor = part(read(tmp_path / "result.json").energy, "processor")
    assert processor.joules is None
    assert str(file) in (processor.unmeasured or "")
