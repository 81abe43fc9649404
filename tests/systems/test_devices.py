"""Facts of devices, by whole names, dense and with their sources, and measurements of systems."""

from pathlib import Path

import pytest
import yaml

import systems
from systems import Cores, Device, device, store
from systems.device import FOLDER, device_called, devices
from systems.files import SystemFileError, read_as

WITHOUT_TENSOR_CORES = {"Tesla P100-PCIE-16GB"}
WITH_SPARSITY = {
    "Tesla P100-PCIE-16GB": None,
    "Tesla V100-SXM2-16GB": None,
    **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), 624e12),
    **dict.fromkeys(("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), 624e12),
    **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H100 96GB HBM2e", "NVIDIA H200"), 1979e12),
    "NVIDIA H100 PCIe": 1513e12,
    **dict.fromkeys(("NVIDIA H100 NVL", "NVIDIA H200 NVL"), 1671e12),
    **dict.fromkeys(("NVIDIA GH200 120GB", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"), 1979e12),
    "NVIDIA B200": 36e15 / 8,
    "AMD Instinct MI250X": None,
    "AMD Instinct MI300X": 2614.9e12,
    "AMD Instinct MI300A": 1961.2e12,
}
"""Flop/s in fp16 as data sheets print them, twice what is dense; None for what has no such rate."""


MEASURED = """
date: '2026-11-22'
source: {command: bench collectives, device: AMD EPYC, hosts: 4, ranks: 8}
message_bytes: 16777216
devices_per_node: 2
intra: {1x2: 1.5e+9}
inter:
  {bytes_per_s: 1.1e+8, kinds: {all_reduce: 1.1e+8}, shared: {2x4: 5.5e+7}, link_bytes_per_s: 1.2e+8, step_s: 0.001,
   half_bytes: 0}
"""


def called(name: str) -> Device:
    found = device_called(name)
    assert found is not None
    return found


def figures(name: str, *dtypes: str) -> tuple[float, ...]:
    """Memory in GB, its GB/s and Tflop/s by dtype."""
    one = called(name)
    assert one.memory_bytes
    assert one.memory_bytes_per_s
    peaks = {str(dtype): fact.value for dtype, fact in one.peak_flops.items()}
    return one.memory_bytes.value / 1e9, one.memory_bytes_per_s.value / 1e9, *(peaks[dtype] / 1e12 for dtype in dtypes)


def test_each_device_is_known_by_each_of_its_whole_names_alone() -> None:
    assert {one.name for one in devices().values()} == set(WITH_SPARSITY)
    assert all(called(name).name == name for name in WITH_SPARSITY)
    assert called("A100-SXM4-80GB") == called("NVIDIA A100-SXM4-80GB"), "of an older driver"
    files = [read_as(device.Devices, path, what="a devices", holds="kind") for path in FOLDER.glob("*.yaml")]
    every = [known for file in files for name, said in file.devices.items() for known in (name, *said.aliases)]
    assert len(every) == len({*every}) == len(devices())
    for part in ("NVIDIA H100", "nvidia h200", "NVIDIA A100", "A100", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"):
        assert device_called(part) is None
    for unknown in ("NVIDIA L40S", "AMD Instinct MI250X / MI250", ""):
        assert device_called(unknown) is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA A100-SXM4-40GB", (40, 1555, 312, 156)),
        ("NVIDIA A100-SXM4-80GB", (80, 2039, 312, 156)),
        ("NVIDIA A100 80GB PCIe", (80, 1935, 312, 156)),
        ("NVIDIA H100 80GB HBM3", (80, 3350, 989.4, 494.7)),
        ("NVIDIA H100 PCIe", (80, 2000, 756, 378)),
        ("NVIDIA H100 NVL", (94, 3900, 835.5, 417.5)),
        ("NVIDIA H200", (141, 4800, 989.4, 494.7)),
        ("NVIDIA H200 NVL", (141, 4800, 835.5, 417.5)),
        ("NVIDIA GH200 480GB", (96, 4000, 990, 494)),
        ("NVIDIA GH200 144G HBM3e", (144, 4900, 990, 494)),
    ],
)
def test_forms_and_memory_sizes_of_one_model_are_told_apart(name: str, known: tuple[float, ...]) -> None:
    assert figures(name, "bf16", "tf32") == pytest.approx(known)


@pytest.mark.parametrize(("name", "sparse"), WITH_SPARSITY.items())
def test_peaks_are_dense_and_in_proportion_to_each_other_and_to_the_memory(name: str, sparse: float | None) -> None:
    one = called(name)
    peaks = {str(dtype): fact.value for dtype, fact in one.peak_flops.items()}
    half = peaks["fp16"]
    assert peaks.get("bf16", half) == half
    if sparse is not None:
        assert half == pytest.approx(sparse / 2, rel=1e-3)
        assert half == pytest.approx(2 * peaks["tf32"], rel=2.5e-3)
    assert peaks["fp64"] <= peaks["fp32"] <= half / (2 if name in WITHOUT_TENSOR_CORES else 4)
    assert one.memory_bytes
    assert one.memory_bytes_per_s
    assert 0.017 < one.memory_bytes.value / one.memory_bytes_per_s.value < 0.043
    assert (20 if name in WITHOUT_TENSOR_CORES else 100) < half / one.memory_bytes_per_s.value < 420


@pytest.mark.parametrize("name", [name for name in systems.names() if systems.load(name).device.kind == "cuda"])
def test_every_systems_gpu_is_in_the_table_and_has_its_memory(name: str) -> None:
    own = systems.load(name).device
    advertised = called(own.name)
    assert (own.memory_bytes, own.memory_bytes_per_s) == (advertised.memory_bytes, advertised.memory_bytes_per_s)
    assert set(own.peak_flops) == set(advertised.peak_flops)
    for dtype, fact in own.peak_flops.items():
        assert fact.value == pytest.approx(advertised.peak_flops[dtype].value, rel=2e-3), "a paper may round"


def test_what_a_system_says_of_its_device_goes_before_what_is_advertised_and_is_no_other_systems() -> None:
    alps, table = systems.load("alps").device, called("NVIDIA GH200 120GB")
    assert (alps.peak_flops["bf16"].value, table.peak_flops["bf16"].value) == (989e12, 990e12)
    assert alps.peak_flops["tf32"] == table.peak_flops["tf32"]
    assert set(alps.empirical_peak_flops) == {"bf16"}
    assert not table.empirical_peak_flops


def test_a_device_of_a_file_without_its_source_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "maker.yaml"
    file.write_text("kind: cuda\ndevices: {Fast 1: {memory_bytes: {value: 1.0}}}")
    with pytest.raises(SystemFileError, match=r"maker\.yaml.*devices\.Fast 1\.memory_bytes\.source"):
        read_as(device.Devices, file, what="a devices", holds="kind and devices")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "FOLDER", tmp_path / "measured")
    (tmp_path / "measured").mkdir()
    return tmp_path / "measured"


def test_measurements_are_of_systems_and_the_virtual_cluster_stays_below_its_links() -> None:
    for file in store.FOLDER.glob("*.yaml"):
        assert file.stem in systems.names()
        assert systems.measured(file.stem) is not None
    found = systems.measured("vcluster")
    assert found is not None
    assert found.inter is not None
    link = systems.load("vcluster").node.nic_bytes_per_s
    assert link is not None
    assert found.inter.bytes_per_s <= found.inter.node_rate() < link.value


def test_what_is_kept_is_read_again(folder: Path) -> None:
    (folder / "one.yaml").write_text(MEASURED)
    assert systems.measured("frontier") is None
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
    assert [cores.ranks_per_core(ranks) for ranks in (1, 2, 4, 8, 16)] == pytest.approx([1, 1, 2, 4, 4])


@pytest.mark.parametrize(
    ("change", "parts"),
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
        (("{1x2: 1.5e+9}", "[a"), ["valid YAML"]),
        ((MEASURED, "- 1"), ["keys of a measurement"]),
    ],
)
def test_a_bad_measurement_is_refused_by_file_key_and_value(
    folder: Path, change: tuple[str, str], parts: list[str]
) -> None:
    before, found, after = MEASURED.partition(change[0])
    assert found
    (folder / "bad.yaml").write_text(before + change[1] + after)
    with pytest.raises(SystemFileError) as raised:
        systems.measured("bad")
    assert [part for part in (str(folder / "bad.yaml"), *parts) if part not in str(raised.value)] == []
    assert "\n" not in str(raised.value)
