"""The measured bandwidths of systems: what a file holds, and what a bad one is told."""

from pathlib import Path

import pytest
import yaml

import systems
from systems import Cores, SystemFileError, store

GOOD = """
date: '2026-11-22'
source: {command: bench collectives, device: AMD EPYC, hosts: 4, ranks: 8}
message_bytes: 16777216
devices_per_node: 2
intra: {1x2: 1.5e+9}
inter:
  {bytes_per_s: 1.1e+8, kinds: {all_reduce: 1.1e+8}, shared: {2x4: 5.5e+7}, link_bytes_per_s: 1.2e+8, step_s: 0.001,
   half_bytes: 0}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "FOLDER", tmp_path / "measured")
    (tmp_path / "measured").mkdir()
    return tmp_path / "measured"


@pytest.mark.parametrize("file", sorted(store.FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_file_is_of_a_system_and_valid(file: Path) -> None:
    assert file.stem in systems.names()
    assert systems.measured(file.stem) is not None


def test_those_of_the_virtual_cluster_are_there_and_stay_below_its_links() -> None:
    found = systems.measured("vcluster")
    assert found is not None
    assert found.inter is not None
    link = systems.load("vcluster").node.nic_bytes_per_s
    assert link is not None
    assert found.inter.bytes_per_s <= found.inter.way_out() < link.value


def test_what_is_kept_is_read_again(folder: Path) -> None:
    (folder / "one.yaml").write_text(GOOD)
    found = systems.measured("one")
    assert found is not None
    assert found.intra_of() == {(1, 2): 1.5e9}
    assert (found.intra_step_s, found.intra_processor) == (None, {}), "older files don't tell"
    assert store.keep("two", found) == folder / "two.yaml"
    assert systems.measured("two") == found
    assert yaml.safe_load((folder / "two.yaml").read_text())["intra"] == {"1x2": 1.5e9}
    assert sorted(file.name for file in folder.iterdir()) == ["one.yaml", "two.yaml"]


def test_ranks_that_are_fewer_have_more_of_a_core() -> None:
    cores = Cores(ranks=8, cores=2)
    assert [cores.ranks_a_core(ranks) for ranks in (1, 2, 4, 8, 16)] == pytest.approx([1, 1, 2, 4, 4])


def test_what_nobody_measured_is_none(folder: Path) -> None:
    assert systems.measured("frontier") is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("1x2: 1.5e+9", "2: 1.5e+9"), ["intra.2", "valid string"]),
        (("1x2: 1.5e+9", "1x0: 1.5e+9"), ["intra.1x0", "match pattern"]),
        (("1.5e+9", "-1"), ["intra.1x2", "greater than 0", "-1"]),
        (("1.5e+9", ".inf"), ["intra.1x2", "finite"]),
        (("step_s: 0.001", "step_s: -1"), ["inter.step_s", "greater than or equal to 0"]),
        (("all_reduce:", "broadcast:"), ["inter.kinds.broadcast", "'all_reduce'"]),
        (("date: '2026-11-22'", "date: yesterday"), ["date", "yesterday"]),
        (("device: AMD EPYC, ", ""), ["source.device", "required"]),
        (("intra:", "within:"), ["within", "not permitted"]),
        (("{1x2: 1.5e+9}", "[a"), ["not YAML"]),
        ((GOOD, "- 1"), ["keys of a measurement"]),
    ],
)
def test_a_bad_file_is_told_the_file_the_key_and_what_was_expected(
    folder: Path, change: tuple[str, str], told: list[str]
) -> None:
    assert GOOD.replace(*change) != GOOD
    (folder / "bad.yaml").write_text(GOOD.replace(*change))
    with pytest.raises(SystemFileError) as raised:
        systems.measured("bad")
    for part in [str(folder / "bad.yaml"), *told]:
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)
