"""What is wrong with how ranks are bound, of planted records: each fault, and its neighbour that is fine."""

from typing import Any

import pytest

from engine.comm.binding import MOST_NODES, crowded, judge, summarise
from engine.errors import UsageError
from engine.measure.binding import Binding, mask, numbers_of


def rank(cores: str = "0-15", *, main: str | None = None, node: int = 0, **changes: Any) -> Binding:
    """A rank of a machine with two sockets of 16 cores, on processors."""
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


SHARED = {
    "both on one core": [rank("0"), rank("0")],
    "more threads than cores": [rank("0-15", threads=16), rank("0-15", threads=16)],
    "nested": [rank("0"), rank("0-15", threads=15), rank("0")],
    "a chain": [rank("0-1", threads=2), rank("1-2", threads=2), rank("8-31")],
    "main threads on one core": [rank("0-15", main="0"), rank("0-15", main="0")],
    "a limit of the control group": [rank("0-15", limit=1.5), rank("0-15", limit=1.5)],
    "two host names of one machine": [rank("0", host="a"), rank("0", host="b")],
}
APART = {
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
    groups = crowded([mask(numbers_of(text)) for text in ("0", "0", "1-2", "4", "4")], [1] * 5)
    assert set(groups) == {frozenset({0, 1}), frozenset({3, 4})}


def test_a_rank_with_fewer_cores_than_threads_shares_none() -> None:
    assert kinds(rank("0", threads=4), rank("1")) == {"fewer cores than threads": (0, "n0", 1)}


def test_cores_of_another_node_than_the_gpu_s_are_told() -> None:
    near, far = [on_gpu(0, "0-7"), on_gpu(3, "16-23")], [on_gpu(0, "16-23"), on_gpu(3, "0-7")]
    assert kinds(*near) == {}
    assert kinds(*far) == {"cores far from the GPU": (0, "n0", 2)}
    assert kinds(near[0], on_gpu(3, "8-15")) == {"cores far from the GPU": (1, "n0", 1)}
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
