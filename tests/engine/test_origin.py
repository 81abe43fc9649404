"""A plan says where its machine's numbers come from, and when they are another machine's."""

import pytest

import systems
from engine.planning import document as module
from engine.planning.document import describe, origin
from systems import Measured, Performance, Source

PERFORMANCE = Performance(products=0.5, link=0.5, fading=0, slowdown=0, spread=0.1, fitted_to=("gpt-test on 8x1x1x1",))


def calibrated(device: str) -> Measured:
    source = Source(command="bench collectives", device=device, hosts=4, ranks=8)
    return Measured(date="2026-01-02", source=source, message_bytes=1, devices_per_node=2, performance=PERFORMANCE)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processor_name", lambda: "Fast Processor")
    monkeypatch.setattr(module, "processor", lambda: "Fast Processor, 2 cores")


def test_without_a_calibration_it_is_the_published_times_or_nothing() -> None:
    frontier = systems.load("frontier")
    published = describe(origin(frontier, None, simulated=True))
    assert all(part in published for part in ("gpt-5b on 512", "gpt-80b on 8192"))
    links = calibrated("AMD Instinct MI250X").model_copy(update={"performance": None})
    unused = describe(origin(frontier, links, simulated=True))
    assert unused.startswith(published)
    assert all(part in unused for part in ("2026-01-02", "par4d calibrate --system frontier"))
    used = describe(origin(frontier, links, simulated=False))
    assert "2026-01-02: AMD Instinct MI250X" in used
    assert "512" not in used
    assert "calibrated summit" in describe(origin(systems.load("summit"), None, simulated=True))


@pytest.mark.parametrize(
    ("system", "device", "processor", "other"),
    [
        ("vcluster", "Fast Processor", None, None),
        ("vcluster", "Fast Processor", "Fast Processor, 2 cores", None),
        ("vcluster", "Fast Processor", "Fast Processor, 8 cores", "this one, Fast Processor, 2 cores"),
        ("vcluster", "Slow Processor", None, "this one, Fast Processor"),
        ("local", "Slow Processor", None, "this one, Fast Processor"),
        ("perlmutter", "NVIDIA A100-SXM4-40GB", None, None),
        ("perlmutter", "NVIDIA A100-SXM4-80GB", None, "NVIDIA A100-SXM4-40GB"),
        ("perlmutter80", "NVIDIA A100-SXM4-80GB", None, None),
        ("perlmutter", "AMD Instinct MI250X", None, systems.load("perlmutter").device.name),
        ("perlmutter", "a GPU that no file has", None, systems.load("perlmutter").device.name),
    ],
)
def test_a_calibration_of_another_machine_is_named(
    system: str, device: str, processor: str | None, other: str | None
) -> None:
    measured = calibrated(device)
    measured = measured.model_copy(update={"source": measured.source.model_copy(update={"processor": processor})})
    found = origin(systems.load(system), measured, simulated=True)
    assert (found.date, found.device, found.other) == ("2026-01-02", device, other)
    assert found.fitted_to == PERFORMANCE.fitted_to
    said = describe(found)
    assert ("another machine" in said) == (other is not None)
    assert (f"par4d calibrate --system {system}" in said) == (other is not None)
    assert "2026-01-02" in said
    assert device in said
