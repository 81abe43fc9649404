"""The clock of what a rank computes on: where it is read, and that a machine that doesn't tell harms no run."""

from pathlib import Path

import pytest
import torch

from engine.loading import cores
from engine.measure import clock_rate
from engine.measure.clock_rate import clock_hz, core_hz
from engine.measure.machine import SYSFS

TWO_CORES = """processor\t: {0}
model name\t: A Processor
cpu MHz\t\t: 2100.500

processor\t: {1}
model name\t: A Processor
cpu MHz\t\t: 800.000
"""


def frequency(root: Path, core: int, told: str) -> None:
    """Write the rate as the kernel does, in kHz (Documentation/admin-guide/pm/cpufreq.rst)."""
    file = root / "devices" / "system" / "cpu" / f"cpu{core}" / "cpufreq" / "scaling_cur_freq"
    file.parent.mkdir(parents=True)
    file.write_text(told)


def test_a_core_is_read_by_its_own_file_and_else_by_the_lines_of_all(tmp_path: Path) -> None:
    frequency(tmp_path, 1, "2450000\n")
    information = tmp_path / "cpuinfo"
    assert core_hz(1, tmp_path, information) == 2.45e9
    information.write_text(TWO_CORES.format(1, 12))
    assert core_hz(1, tmp_path, information) == 2.45e9
    assert core_hz(12, tmp_path, information) == 8e8
    assert core_hz(1, tmp_path / "elsewhere", information) == pytest.approx(2.1005e9)


@pytest.mark.parametrize("told", ["", "<unknown>\n", "0\n"])
def test_what_tells_nothing_is_no_clock(told: str, tmp_path: Path) -> None:
    frequency(tmp_path, 0, told)
    information = tmp_path / "cpuinfo"
    information.write_text(TWO_CORES.format(1, 2).replace("cpu MHz\t\t: 2100.500\n", ""))
    assert core_hz(0, tmp_path, information) is None
    assert core_hz(1, tmp_path, information) is None, "the next core's line is not its own"


def test_a_rank_reads_the_core_that_it_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SYSFS, str(tmp_path))
    for core in cores():
        frequency(tmp_path, core, f"{3_000_000 + core}")
    rate = clock_hz(torch.device("cpu"))
    assert rate is not None
    assert rate / 1e3 - 3_000_000 in cores()


class Card:
    """Answers for a device that isn't there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: int | Exception) -> None:
        self.answer = answer
        monkeypatch.setattr(clock_rate, "DEVICE_BUSY_S", 0.0)
        monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.zeros(2, 2))
        monkeypatch.setattr(torch, "Generator", lambda *_: self)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self)
        monkeypatch.setattr(torch.cuda, "clock_rate", self.rate)

    def manual_seed(self, _: int) -> None:
        """Method of a generator."""

    def synchronize(self) -> None:
        """Method of a stream."""

    def rate(self, _: torch.device) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(1980, 1.98e9), (0, None), (ModuleNotFoundError("no pynvml"), None), (RuntimeError("no driver"), None)],
)
def test_a_device_is_asked_by_torch_and_a_failure_is_no_clock(
    answer: int | Exception, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Card(monkeypatch, answer)
    assert clock_hz(torch.device("cuda", 0)) == expected


def test_without_a_device_or_its_library_there_is_no_clock_and_no_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("here is one")
    assert clock_hz(torch.device("cuda", 0)) is None
