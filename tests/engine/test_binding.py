"""What a rank reads of where it is bound, of machines whose /sys is planted."""

from pathlib import Path

import pytest

from engine.comm.binding import listed
from engine.measure import binding
from engine.measure.binding import Asked, Gpu, cores_asked, mask, nearest_card, numbers_of, read
from engine.measure.machine import SYSFS

GPU, OTHER_GPU = "0000:c1:00.0", "0000:01:00.0"
NEAR, FAR = "pci0000:c0/0000:c0:01.1", "pci0000:00/0000:00:01.1"
"""Bridges of both sockets."""


def plant(root: Path, *, nodes: dict[int, str] | None = None) -> Path:
    """A machine of two sockets, each with a GPU."""
    for node, cores in ({0: "0-15", 1: "16-31"} if nodes is None else nodes).items():
        written(root / f"devices/system/node/node{node}/cpulist", f"{cores}\n")
    device(root, f"{NEAR}/{GPU}", 1)
    device(root, f"{FAR}/{OTHER_GPU}", 0)
    return root


def written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def device(root: Path, path: str, node: int) -> Path:
    """A PCI device."""
    folder = root / "devices" / path
    written(folder / "numa_node", f"{node}\n")
    link = root / "bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def card(root: Path, kind: str, name: str, path: str, node: int) -> None:
    """A network card, by its name in a class; a second class may have it by another one."""
    folder = root / "devices" / path
    if not folder.exists():
        device(root, path, node)
    entry = root / "class" / kind / name
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(folder)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the first socket's first cores."""
    monkeypatch.setattr(binding, "AT_START", frozenset({0, 1, 2, 3}))
    monkeypatch.setattr(binding, "cores", lambda: frozenset({0}))


@pytest.mark.usefixtures("bound")
def test_a_rank_reads_its_cores_and_the_node_of_its_gpu(tmp_path: Path) -> None:
    root = plant(tmp_path)
    card(root, "infiniband", "mlx5_0", f"{FAR}/0000:02:00.0", 0)
    card(root, "infiniband", "mlx5_1", f"{NEAR}/0000:c2:00.0", 1)
    environ = {"OMP_NUM_THREADS": "4,2", "SLURM_CPUS_PER_TASK": "16"}
    found = read(4, Gpu(GPU, "GPU-1", 0), "srun", environ, root)
    assert (found.cores, found.main, found.threads, found.omp, found.asked) == ("f", "1", 4, "4,2", 16)
    assert (found.nodes, found.gpu, found.uuid, found.gpu_node, found.card) == ((0,), GPU, "GPU-1", 1, "mlx5_1")
    assert read(4, Gpu(OTHER_GPU), "srun", environ, root).gpu_node == 0


@pytest.mark.usefixtures("bound")
def test_what_the_kernel_does_not_tell_is_absent(tmp_path: Path) -> None:
    empty = read(1, Gpu(GPU), "none", {}, tmp_path / "none")
    assert (empty.nodes, empty.gpu_node, empty.card, empty.omp, empty.asked) == ((), None, None, None, None)
    assert read(1, None, "none", {}, tmp_path / "none").gpu is None
    root = plant(tmp_path / "odd", nodes={0: "", 1: "", 7: "x-y,\x00", 8: "0-999999999999"})
    for text in ("-1\n", "", "north", "99"):
        written(root / "devices" / NEAR / GPU / "numa_node", text)
        assert read(1, Gpu(GPU), "none", {}, root).gpu_node is None
    (root / "devices" / NEAR / GPU / "numa_node").write_bytes(b"\xff\xfe")
    (root / "devices/system/node/node0/cpulist").write_bytes(b"\xff")
    found = read(1, Gpu(GPU), "none", {"OMP_NUM_THREADS": "\udcff" * 99}, root)
    assert (found.gpu_node, found.nodes) == (None, ())
    assert found.model_dump_json()


@pytest.mark.usefixtures("bound")
def test_a_gpu_near_a_node_of_memory_alone_is_near_no_cores(tmp_path: Path) -> None:
    root = plant(tmp_path, nodes={0: "0-31", 1: ""})
    assert read(1, Gpu(GPU), "none", {}, root).gpu_node is None


def test_the_process_s_own_machine_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = read(1, None, "none", {})
    assert int(found.cores, 16) == mask(binding.AT_START)
    monkeypatch.setenv(SYSFS, str(plant(tmp_path, nodes={3: listed(int(found.cores, 16))})))
    assert read(1, None, "none", {}).nodes == (3,)


def test_the_card_with_the_longest_way_in_common_is_the_nearest(tmp_path: Path) -> None:
    root = plant(tmp_path)
    switch = f"{NEAR}/0000:c2:00.0"
    device(root, f"{switch}/0000:c3:00.0", 1)
    for name, path, node in (
        ("mlx5_10", f"{switch}/0000:c4:00.0", 1),
        ("mlx5_9", f"{switch}/0000:c4:00.1", 1),
        ("mlx5_2", f"{NEAR}/0000:c5:00.0", 1),
        ("mlx5_0", f"{FAR}/0000:02:00.0", 0),
    ):
        card(root, "infiniband", name, path, node)
    card(root, "net", "eth0", f"{switch}/0000:c6:00.0", 1)
    (root / "class/net/lo").mkdir()
    assert nearest_card("0000:c3:00.0", 1, (), root) == "mlx5_9"
    assert nearest_card(GPU, 1, (), root) == "mlx5_2"
    assert nearest_card(OTHER_GPU, 0, (), root) == "mlx5_0"
    assert nearest_card(None, None, (0,), root) == "mlx5_0"


def test_without_a_way_in_common_the_node_decides(tmp_path: Path) -> None:
    root = plant(tmp_path)
    card(root, "cxi", "cxi0", "pci0000:20/0000:21:00.0", 0)
    card(root, "cxi", "cxi1", "pci0000:a0/0000:a1:00.0", 1)
    assert nearest_card(GPU, 1, (), root) == "cxi1"
    assert nearest_card(None, None, (0,), root) == "cxi0"
    assert nearest_card(GPU, None, (), root) is None
    assert nearest_card(None, None, (), root) is None


def test_the_only_card_is_the_nearest(tmp_path: Path) -> None:
    root = plant(tmp_path)
    card(root, "net", "eth0", "pci0000:20/0000:21:00.0", -1)
    assert nearest_card(GPU, 1, (), root) == "eth0"
    (root / "class/net/loop").mkdir()
    (root / "class/net/loop/device").symlink_to(root / "class/net/loop/device")
    assert nearest_card(GPU, 1, (), root) == "eth0"


@pytest.mark.parametrize(
    ("launcher", "environ", "asked"),
    [
        ("srun", {"SLURM_CPUS_PER_TASK": "16"}, Asked(16)),
        ("srun", {"SLURM_CPUS_PER_TASK": "4", "SRUN_CPUS_PER_TASK": "16"}, Asked(4)),
        ("srun", {"SRUN_CPUS_PER_TASK": "16"}, Asked(16)),
        ("srun", {"SLURM_CPUS_PER_GPU": "7"}, Asked(7)),
        ("srun", {}, Asked()),
        ("srun", {"SLURM_CPUS_PER_TASK": "many"}, Asked()),
        ("srun", {"SLURM_CPUS_PER_TASK": "0"}, Asked()),
        ("torchrun", {"SLURM_CPUS_PER_TASK": "64", "SLURM_TASKS_PER_NODE": "1(x4)"}, Asked(64, 1)),
        ("mpirun", {"SLURM_CPUS_PER_TASK": "8", "SLURM_TASKS_PER_NODE": "4(x2),3"}, Asked(8, 4)),
        ("none", {"SLURM_CPUS_PER_TASK": "8"}, Asked(8, 1)),
        ("mpiexec", {"PALS_RANKID": "3", "PALS_DEPTH": "26"}, Asked(26)),
        ("torchrun", {"PALS_RANKID": "3", "PALS_DEPTH": "104", "PALS_LOCAL_SIZE": "2"}, Asked(104, 2)),
        ("none", {"PALS_DEPTH": "26"}, Asked(None, 1)),
    ],
)
def test_launchers_say_how_many_cores_were_asked_for(launcher: str, environ: dict[str, str], asked: Asked) -> None:
    assert cores_asked(launcher, environ, on_gpu=True) == asked


def test_a_device_s_share_of_cores_is_not_asked_for_on_processors() -> None:
    assert cores_asked("srun", {"SLURM_CPUS_PER_GPU": "7"}, on_gpu=False) == Asked()


@pytest.mark.parametrize(("text", "cores"), [("0-2,8", {0, 1, 2, 8}), ("", set()), ("3", {3}), ("\n", set())])
def test_lists_of_cores_are_read_and_written(text: str, cores: set[int]) -> None:
    assert numbers_of(text) == cores
    assert listed(mask(frozenset(cores))) == text.strip()
