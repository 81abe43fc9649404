"""A plan says where its machine's numbers come from, and when they are another machine's."""

import pytest

import systems
from engine.planning import origin as module
from engine.planning.origin import origin, told
from systems import Measured, Performance, Source

PERFORMANCE = Performance(products=0.5, link=0.5, fading=0, slowdown=0, spread=0.1, fitted_to=("gpt-test on 8x1x1x1",))


def calibrated(device: str) -> Measured:
    source = Source(command="bench collectives", device=device, hosts=4, ranks=8)
    return Measured(date="2026-01-02", source=source, message_bytes=1, devices_per_node=2, performance=PERFORMANCE)


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processor_name", lambda: "Fast Processor")


def test_without_a_calibration_it_is_the_published_times_or_nothing() -> None:
    frontier = origin(systems.load("frontier"), None)
    assert told(frontier) == "The machine's numbers are fitted to published times of gpt-5b on 512 and gpt-80b on 8192."
    only_links = calibrated("a device").model_copy(update={"performance": None})
    assert origin(systems.load("frontier"), only_links) == frontier
    assert "Nobody has calibrated summit" in told(origin(systems.load("summit"), None))


@pytest.mark.parametrize(
    ("system", "device", "other"),
    [
        ("vcluster", "Fast Processor", None),
        ("vcluster", "Slow Processor", "this one, Fast Processor"),
        ("local", "Slow Processor", "this one, Fast Processor"),
        ("perlmutter", "NVIDIA A100-SXM4-40GB", None),
        ("perlmutter", "AMD Instinct MI250X", systems.load("perlmutter").device.name),
        ("perlmutter", "a GPU that no file has", None),
    ],
)
def test_a_calibration_of_another_machine_is_told(system: str, device: str, other: str | None) -> None:
    found = origin(systems.load(system), calibrated(device))
    assert (found.date, found.device, found.other) == ("2026-01-02", device, other)
    assert found.fitted_to == PERFORMANCE.fitted_to
    said = told(found)
    assert ("is of another machine" in said) == (other is not None)
    assert (f"par4d calibrate --system {system}" in said) == (other is not None)
    assert "2026-01-02" in said
    assert device in said
