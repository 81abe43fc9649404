"""Binding: what a rank reads, what is wrong with it, and what real ranks record."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_command import SMALL, finish, start

from engine.comm import binding as told
from engine.comm.binding import MOST_NODES, find_crowds, format_cores, judge, summarise
from engine.errors import UsageError
from engine.loading import cores
from engine.measure import binding
from engine.measure.binding import Asked, Binding, Gpu, cores_asked, mask, nearest_card, numbers_of, read
from engine.measure.machine import SYSFS
from engine.result.schema import read as read_result
from engine.result.schema.machine import Bindings, FaultKind

GPU, OTHER_GPU = "0000:c1:00.0", "0000:01:00.0"
NEAR, FAR = "pci0000:c0/0000:c0:01.1", "pci0000:00/0000:00:01.1"
"""Bridges of both sockets."""


def plant(root: Path, *, nodes: dict[int, str] | None = None) -> Path:
    """Plant a machine of two sockets, each with a GPU."""
    for node, numbers in ({0: "0-15", 1: "16-31"} if nodes is None else nodes).items():
        written(root / f"devices/system/node/node{node}/cpulist", f"{numbers}\n")
    device(root, f"{NEAR}/{GPU}", 1)
    device(root, f"{FAR}/{OTHER_GPU}", 0)
    return root


def written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def device(root: Path, path: str, node: int) -> Path:
    folder = root / "devices" / path
    written(folder / "numa_node", f"{node}\n")
    link = root / "bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def card(root: Path, kind: str, name: str, path: str, node: int) -> None:
    """Plant a network card, by its name in a class; a second class may have it by another one."""
    folder = root / "devices" / path
    if not folder.exists():
        device(root, path, node)
    entry = root / "class" / kind / name
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(folder)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding to the first socket's first cores."""
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
    monkeypatch.setenv(SYSFS, str(plant(tmp_path, nodes={3: format_cores(int(found.cores, 16))})))
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
    assert format_cores(mask(frozenset(cores))) == text.strip()


def rank(cores: str = "0-15", *, main: str | None = None, node: int = 0, **changes: Any) -> Binding:
    """Make a rank of a machine with two sockets of 16 cores, on processors."""
    own, first = (f"{mask(numbers_of(text)):x}" for text in (cores, main or cores))
    nodes = tuple(sorted({core // 16 for core in numbers_of(cores)}))
    usual = {"host": f"n{node}", "machine": f"m{node}", "group": f"m{node}", "nodes": nodes, "threads": 1}
    return Binding(**(usual | {"cores": own, "main": first} | changes))


def on_gpu(place: int, cores: str, *, node: int = 0, **changes: Any) -> Binding:
    usual = {
        "gpu": f"0000:{place:02x}:00.0",
        "uuid": f"GPU-{node}-{place}",
        "slot": f"{place}/all",
        "gpu_node": place // 2,
    }
    return rank(cores, node=node, **(usual | changes))


def kinds(*ranks: Binding) -> dict[str, tuple[int, str, int]]:
    return {fault.kind: (fault.first_rank, fault.host, fault.ranks) for fault in judge(ranks)}


GPU_FAR: FaultKind = "cores far from the GPU"
SHARED: dict[str, list[Binding]] = {
    "both on one core": [rank("0"), rank("0")],
    "more threads than cores": [rank("0-15", threads=16), rank("0-15", threads=16)],
    "nested": [rank("0"), rank("0-15", threads=15), rank("0")],
    "a chain": [rank("0-1", threads=2), rank("1-2", threads=2), rank("8-31")],
    "main threads on one core": [rank("0-15", main="0"), rank("0-15", main="0")],
    "a limit of the control group": [rank("0-15", limit=1.5), rank("0-15", limit=1.5)],
    "two host names of one machine": [rank("0", host="a"), rank("0", host="b")],
}
APART: dict[str, list[Binding]] = {
    "one rank": [rank("0")],
    "one core each": [rank("0"), rank("1")],
    "unbound with room": [rank("0-15")] * 16,
    "unbound threads with room": [rank("0-15", threads=4)] * 4,
    "overlapping with room": [rank("0-1"), rank("1-2"), rank("2-3")],
    "to be ordered": [rank("0-1"), rank("0-1"), rank("0-2", threads=1)],
    "main threads apart": [rank("0-15", main="0"), rank("0-15", main="1")],
    "limits of two control groups": [rank(limit=1.0, group="a"), rank(limit=1.0, group="b")],
    "two machines": [rank("0"), rank("0", node=1)],
}


@pytest.mark.parametrize("name", SHARED)
def test_ranks_that_share_cores_are_told(name: str) -> None:
    assert "cores shared" in kinds(*SHARED[name])


@pytest.mark.parametrize("name", APART)
def test_ranks_with_room_enough_are_not(name: str) -> None:
    assert kinds(*APART[name]) == {}


def test_the_ranks_that_share_are_counted_over_all_nodes_and_the_first_is_named() -> None:
    ranks = [rank(cores, node=node) for node in range(3) for cores in ("0-1", "8", "8", "9")]
    assert kinds(*ranks) == {"cores shared": (1, "n0", 6)}


def test_all_groups_of_a_machine_are_found() -> None:
    groups = find_crowds([mask(numbers_of(text)) for text in ("0", "0", "1-2", "4", "4")], [1] * 5)
    assert set(groups) == {frozenset({0, 1}), frozenset({3, 4})}


def test_a_rank_with_fewer_cores_than_threads_shares_none() -> None:
    assert kinds(rank("0", threads=4), rank("1")) == {"fewer cores than threads": (0, "n0", 1)}


def test_cores_of_another_node_than_the_gpu_s_are_told() -> None:
    near, far = [on_gpu(0, "0-7"), on_gpu(3, "16-23")], [on_gpu(0, "16-23"), on_gpu(3, "0-7")]
    assert kinds(*near) == {}
    assert kinds(*far) == {GPU_FAR: (0, "n0", 2)}
    assert kinds(near[0], on_gpu(3, "8-15")) == {GPU_FAR: (1, "n0", 1)}
    assert kinds(on_gpu(0, "8-23")) == {}
    assert kinds(on_gpu(3, "0-7", gpu_node=None)) == kinds(on_gpu(3, "0-7", nodes=())) == {}


def test_fewer_cores_than_the_job_asked_for_are_told() -> None:
    assert kinds(rank("0", asked=16), rank("1", asked=16)) == {"fewer cores than asked": (0, "n0", 2)}
    assert kinds(rank("0-15", asked=16), rank("16-31", asked=16)) == {}
    assert kinds(rank("0-15", asked=16, limit=4.0)) == {"fewer cores than asked": (0, "n0", 1)}
    assert kinds(rank("0-15"), rank("16-31")) == {}


def test_ranks_of_one_task_share_what_was_asked_for_it() -> None:
    parts = [rank(f"{4 * part}-{4 * part + 3}", asked=16, tasks=1) for part in range(4)]
    assert kinds(*parts) == {}
    assert kinds(*(one.model_copy(update={"tasks": 4}) for one in parts))["fewer cores than asked"] == (0, "n0", 4)
    bound_to_one = [rank(str(core), asked=16, tasks=1) for core in range(4)]
    assert kinds(*bound_to_one)["fewer cores than asked"] == (0, "n0", 4)


@pytest.mark.parametrize(
    ("omp", "threads", "wrong"),
    [("16", 1, True), ("16,2", 1, True), (None, 4, True), ("2", 2, False), (" 1,8", 1, False)],
)
def test_fewer_cores_than_threads_are_told(omp: str | None, threads: int, wrong: bool) -> None:
    found = kinds(rank("0-1", omp=omp, threads=threads))
    assert found == ({"fewer cores than threads": (0, "n0", 1)} if wrong else {})


def test_two_ranks_on_one_gpu_are_refused_by_name() -> None:
    first, second = on_gpu(1, "0-7"), on_gpu(1, "8-15")
    with pytest.raises(UsageError, match=r"Ranks 1, 2 .*0000:01:00\.0"):
        judge([on_gpu(0, "0"), first, second])
    for lacking in ({"uuid": None}, {"gpu": None}):
        with pytest.raises(UsageError, match="Ranks 0, 1 "):
            judge([one.model_copy(update=lacking) for one in (first, second)])
    with pytest.raises(UsageError, match="3 and 4 more "):
        judge([first] * 8)
    with pytest.raises(UsageError, match="Ranks 0, 1 "):  # each sees one device alone, which is the same
        judge([first.model_copy(update={"slot": f"0/{sees}"}) for sees in ("all", "one")])


def test_devices_of_their_own_are_not_one_gpu() -> None:
    slices = [on_gpu(1, f"{place}", uuid=f"MIG-{place}", slot=f"0/{place}") for place in range(2)]
    parts = [on_gpu(1, f"{place}", slot=f"{place}/all") for place in range(2)]
    nodes = [on_gpu(1, "0-7", node=node, uuid=None) for node in range(2)]
    unknown = [on_gpu(1, f"{place}", uuid=None, gpu=None) for place in range(2)]
    for ranks in (slices, parts, nodes, unknown):
        assert kinds(*ranks) == {}


def test_thousands_of_equal_nodes_are_one_in_the_result() -> None:
    ranks = [on_gpu(place, f"{4 * place}-{4 * place + 3}", node=node) for node in range(512) for place in range(4)]
    odd = [on_gpu(place, "0-31", node=999) for place in range(4)]
    found = summarise([*ranks[:4], *odd, *ranks[4:]])
    assert [(one.host, one.nodes, one.first_rank, len(one.ranks)) for one in found.nodes] == [
        ("n0", 512, 0, 4),
        ("n999", 1, 4, 4),
    ]
    assert found.nodes[0].gpus == tuple(f"GPU-0-{place}" for place in range(4))
    assert found.nodes[1].ranks[0].cores == "0-31"
    assert len(found.model_dump_json()) < 4000


def test_nodes_of_too_many_kinds_are_counted() -> None:
    found = summarise([rank("0", node=node, threads=1, card=f"eth{node}") for node in range(MOST_NODES + 5)])
    assert (len(found.nodes), found.nodes_left_out) == (MOST_NODES, 5)


TWO = ["train", *SMALL, "--grid", "1x1x2x1", "--iterations", "2", "--warmup", "1"]


def of(out: Path) -> Bindings:
    found = read_result(out).provenance.bindings
    assert found is not None
    return found


@pytest.mark.skipif(shutil.which("taskset") is None, reason="takes taskset")
def test_two_ranks_on_one_core_are_told_and_marked(tmp_path: Path) -> None:
    core, out = str(min(cores())), tmp_path / "result.json"
    codes, said = finish(start(2, *TWO, "--out", str(out), under=("taskset", "-c", core)))
    assert codes == [0, 0]
    assert [text.count("Binding: cores shared") for text in said] == [1, 0]
    (node,), (fault,) = of(out).nodes, of(out).faults
    assert [one.cores for one in node.ranks] == [core, core]
    assert (fault.kind, fault.first_rank, fault.ranks) == ("cores shared", 0, 2)


def _one_gpu() -> None:
    told.gpu_of = lambda device: Gpu("0000:c1:00.0", "GPU-1", 0)


@pytest.mark.parametrize("words", [TWO, ["bench", "latency", "--device", "cpu"]], ids=["train", "bench"])
def test_two_ranks_on_one_gpu_are_refused_on_both(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    codes, said = finish(start(2, *words, "--out", str(out), before=_one_gpu))
    assert codes == [2, 2]
    assert all("Ranks 0, 1 on" in text and "0000:c1:00.0" in text for text in said)
    assert (read_result(out).status, "0000:c1:00.0" in str(read_result(out).reason)) == ("failed", True)


def test_one_rank_is_recorded_and_judged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(len(cores()) + 1))
    out = tmp_path / "result.json"
    codes, said = finish(start(1, "bench", "latency", "--device", "cpu", "--out", str(out)))
    assert (codes, said[0].count("Binding: ")) == ([0], 1)
    assert [fault.kind for fault in of(out).faults] == ["fewer cores than asked"]
