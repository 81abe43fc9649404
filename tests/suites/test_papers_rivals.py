"""The contests of the papers' series have the papers' rivals, at each point, in the layouts in print."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_papers import PAPERS, Edit, plant, set_to, without

import systems
from engine import yaml_text
from engine.models.catalogue import lookup
from engine.peers.layout import Layout
from engine.schema import Record
from suites.base import contests
from suites.base.contests import Match, matches
from suites.base.series import points

PEERS = {"Megatron-LM": "megatron-core", "DeepSpeed-3D": "deepspeed-3d", "ZeRO-3": "deepspeed-zero3"}
PEERS |= {"DeepSpeed": "deepspeed-3d"}
"""Peers by the papers' names of them."""


class Rival(Record):
    """Point of a paper that a rival runs; what is None isn't printed."""

    paper: str
    place: tuple[str, ...]
    series: str
    system: str
    rival: str
    devices: int
    model: str
    precision: str
    sequence: int
    tokens: int | None = None
    sequences: int | None = None
    micro_batch: int | None = None
    intra: int | None = None
    inter: int | None = None
    data: int | None = None
    within_a_node: bool = False
    adjusted: str = ""
    adjusted_for: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.series} on {self.system}, {self.devices} x {self.model}, {self.rival}"

    @property
    def network(self) -> str:
        """Name of the network that both sides train."""
        own = self.adjusted and self.rival in (self.adjusted_for or [self.rival])
        return f"{self.model}-adjusted" if own else self.model


@cache
def table() -> list[Rival]:
    found = []
    for block in yaml_text.read(PAPERS)["rivals"]:
        shared = {key: block[key] for key in block if key not in ("points", "systems")}
        for system in block["systems"]:
            for row in block["points"]:
                fields = shared | {"system": system} | row
                rivals = fields.pop("rivals")
                found += [Rival.model_validate(fields | {"rival": rival}) for rival in rivals]
    return found


def compared(rival: Rival, match: Match) -> Iterator[tuple[str, Any, Any]]:
    """Give each field that is printed, with the table's value and the contest's."""
    point = match.point
    yield "model", rival.network, point.model
    yield "precision", rival.precision, point.series.precision
    yield "sequence", rival.sequence, lookup(point.model).sequence
    yield "sequences", rival.sequences or point.sequences, point.sequences
    yield "tokens", rival.tokens or 0, (rival.tokens and point.sequences * rival.sequence) or 0
    yield "micro_batch", rival.micro_batch or match.micro_batch, match.micro_batch
    layout = match.layout
    assert isinstance(layout, Layout)
    for name, printed, ours in (("intra", rival.intra, layout.tensor), ("inter", rival.inter, layout.pipeline)):
        yield name, printed or ours, ours
    yield "data", rival.data or layout.data, layout.data
    if rival.within_a_node and rival.rival == "ZeRO-3":
        yield "data", rival.devices, layout.data
    elif rival.within_a_node:
        node = systems.load(rival.system).node.devices
        yield "intra", node and node.value, layout.tensor
    yield "stages that divide the layers", 0, lookup(point.model).layers % layout.pipeline


def of(rival: Rival) -> list[Match]:
    return [
        match
        for match in contests_of(rival.system)
        if (match.point.series.name, match.point.devices, match.peer)
        == (rival.series, rival.devices, PEERS[rival.rival])
    ]


@cache
def contests_of(system: str) -> list[Match]:
    """Return the contests of the papers' series."""
    names = {rival.series for rival in table()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            contests, "points", lambda study, name: [one for one in points(study, name) if one.series.name in names]
        )
        return list(matches(systems.load(system)))


def differences() -> list[str]:
    """Say which of the table's points no contest has, or has otherwise, and which contest the table hasn't."""
    lines = []
    for rival in table():
        same = of(rival)
        lines += [f"{rival}: is missing"] if len(same) != 1 else []
        lines += [
            f"{rival}: {field} is {ours}, {rival.paper} has {printed}"
            for match in same
            for field, printed, ours in compared(rival, match)
            if printed != ours
        ]
    known = {(rival.system, rival.series, rival.devices, PEERS[rival.rival]) for rival in table()}
    for system in sorted({rival.system for rival in table()}):
        lines += [
            f"{match} on {system}: is in no paper"
            for match in contests_of(system)
            if (system, match.point.series.name, match.point.devices, match.peer) not in known
        ]
    return list(dict.fromkeys(lines))


@pytest.fixture(autouse=True)
def read_again() -> Iterator[None]:
    """Forget the contests of a file that was planted."""
    yield
    contests_of.cache_clear()


def test_contests_are_the_papers() -> None:
    assert differences() == []


def test_the_table_has_every_rival_at_each_point() -> None:
    """Counts by hand: Table III's, Fig. 9's, Fig. 10's, Fig. 11's, Table II's."""
    count: dict[tuple[str, str, str], int] = {}
    for rival in table():
        key = rival.paper, rival.system, rival.place[0]
        count[key] = count.get(key, 0) + 1
    assert count == {
        ("par4d", "perlmutter", "Table III"): 3 * 5,
        ("par4d", "frontier", "Fig. 11"): 2 * 5,
        ("par4d", "perlmutter", "Fig. 9"): 3 * 5,
        ("par4d", "frontier", "Fig. 9"): 2 * 5,
        ("par4d", "frontier", "Fig. 10"): 2,
        ("axonn-ipdps22", "summit", "Table II"): 2 * 4,
        ("axonn-ipdps22", "summit", "Fig. 11"): 2 * 4,
    }
    ranks = [(one.devices, one.intra * one.inter * one.data) for one in table() if one.intra and one.inter and one.data]
    assert len(ranks) == 16
    assert all(devices == product for devices, product in ranks)


def test_adjusted_networks_have_about_as_many_parameters() -> None:
    for rival in table():
        printed, ours = lookup(rival.model), lookup(rival.network)
        assert ours.parameters == pytest.approx(printed.parameters, rel=0.01)
        assert ours.sequence == printed.sequence


def with_layout(peer: str, devices: int, **ranks: int) -> Edit:
    """Return an edit of a layout that a series names."""

    def edit(every: list[dict[str, Any]]) -> None:
        for of_series in every:
            of_series["layouts"][peer][devices].update(ranks)

    return edit


def without_peer(peer: str) -> Edit:
    """Return an edit that takes a peer away."""

    def edit(every: list[dict[str, Any]]) -> None:
        for of_series in every:
            of_series["peers"] = [name for name in of_series["peers"] if name != peer]

    return edit


def without_layouts(system: str, devices: int) -> Edit:
    """Return an edit that takes the points of so many devices away, with their layouts."""

    def edit(every: list[dict[str, Any]]) -> None:
        without(system, devices)(every)
        for of_series in every:
            for layouts in of_series["layouts"].values():
                del layouts[devices]

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "field", "count"),
    [
        ("par4d-weak", without("perlmutter", 512), "is missing", 3),
        ("par4d-weak", without("frontier", 1024), "is missing", 2),
        ("par4d-strong", without("frontier", 64), "is missing", 2),
        ("par4d-strong", set_to(sequences=1024), "tokens is 2097152", 20),
        ("par4d-weak", without_peer("megatron-core"), "is missing", 5),
        ("axonn-ipdps22-weak", without_layouts("summit", 96), "is missing", 2),
        ("axonn-ipdps22-weak", set_to(precision="bf16"), "precision is bf16", 8),
        ("axonn-ipdps22-weak", with_layout("megatron-core", 384, tensor=4, pipeline=96), "inter is 96", 1),
        ("axonn-ipdps22-weak", with_layout("deepspeed-3d", 48, micro_batch=4), "micro_batch is 4", 1),
    ],
)
def test_a_planted_fault_is_found_with_its_rival_and_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, edit: Edit, field: str, count: int
) -> None:
    plant(monkeypatch, tmp_path, "baselines", name, edit)
    contests_of.cache_clear()
    lines = differences()
    assert len([line for line in lines if field in line]) == count, lines


def test_a_contest_that_no_paper_has_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, tmp_path, "baselines", "par4d-strong", set_to(peers=["deepspeed-3d", "fsdp2"]))
    contests_of.cache_clear()
    lines = differences()
    assert any("fsdp2" in line and line.endswith("is in no paper") for line in lines)
