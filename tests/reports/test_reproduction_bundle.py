"""Bundles of verdicts and `par4d reproduce --compare`: the same verdicts elsewhere, and each planted fault by name."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_ablation import ablation
from sample_results import save, train, validation

from engine.published.claims.tolerance import TOLERANCES
from engine.result.schema import Result
from reports import reproduction_bundle as bundles
from reports import reproduction_compare as comparison
from reports.par4d import main
from reports.reproduction_compare import Origin

SLOW_S = 3 * 17.9127
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results on two papers: three times the published time on Frontier, an ablation elsewhere, and loss curves."""
    folder = tmp_path_factory.mktemp("measured")
    serial, parallel = validation()
    again = parallel.model_copy(update={"config": parallel.config | {"out": "again"}})
    save([*on_frontier(SLOW_S), *ablation(jobs=2, job=30), serial, parallel, again], folder)
    return folder


@pytest.fixture(scope="module")
def packed(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("packed") / "bundle.zip"
    assert main(["reproduce", "--results", str(measured), "--bundle", str(file)]) == 0
    return file


def on_frontier(time_s: float) -> list[Result]:
    """Two jobs of GPT-5B on 512 GCDs."""
    return [
        train(time_s=time_s * off, job=job, series="axonn-sc24", overlap="oar,ors,oag", tuning={"tune_matmul": True})
        for job, off in enumerate((0.9999, 1.0001))
    ]


def compared(capsys: pytest.CaptureFixture[str], code: int, *options: str) -> dict[str, Any]:
    assert main(["reproduce", "--json", *options]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def contents(file: Path) -> Files:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(file: Path, members: Files) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file


def test_a_bundle_is_judged_to_the_same_verdicts_without_its_results(
    packed: Path, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again.zip"
    assert main(["reproduce", "--results", str(measured), "--bundle", str(again)]) == 0
    assert again.read_bytes() == packed.read_bytes()
    capsys.readouterr()
    members = contents(packed)
    document = json.loads(members["bundle.json"])
    assert next(iter(members)) == "bundle.json"
    assert {"systems/frontier.yaml", "published/axonn-sc24.yaml", "published/claims/par4d.yaml"} <= set(members)
    assert "published/conditions/axonn-sc24.yaml" in members
    assert {"par4d", "torch", "pandas", "python"} <= set(document["origin"]["versions"])
    assert len([name for name in members if name.startswith("results/")]) == 7
    found = compared(capsys, 0, "--compare", str(packed))
    assert [one["claims"] for one in found["figures"]] == [one["claims"] for one in document["figures"]]
    assert found["compared"] | {"file": "", "commit": ""} == {
        **{"file": "", "commit": "", "same": found["compared"]["same"]},
        **{"differing": [], "outdated": [], "facts": []},
    }
    assert found["compared"]["same"] > 5
    one = compared(capsys, 0, "--compare", str(packed), "--paper", "par4d", "--figure", "Fig. 8")
    assert 0 < one["compared"]["same"] < found["compared"]["same"]


def test_a_document_is_compared_with_what_is_measured_now(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: the jobs on Frontier are as fast as published by now."""
    kept, folder = tmp_path / "kept.json", tmp_path / "now"
    compared(capsys, 0, "--results", str(measured), "--out", str(kept))
    folder.mkdir()
    save([*on_frontier(17.9127), *ablation(jobs=2, job=30)], folder)
    found = compared(capsys, 1, "--compare", str(kept), "--results", str(folder))
    changes = {(one["place"], one["was"], one["now"]) for one in found["compared"]["differing"]}
    assert ("axonn-sc24 Fig. 6, times on Frontier", "differs", "reproduces") in changes
    assert ("par4d Fig. 8, GPT", "reproduces", "no verdict") in changes
    assert not any("Fig. 3" in place for place, *_ in changes)


def test_a_tolerance_changed_after_a_verdict_is_told_by_the_digest(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLERANCES, "share", TOLERANCES["share"]._replace(amount=0.25))
    found = compared(capsys, 1, "--compare", str(packed), "--paper", "par4d")
    told = [sentence for sentence in found["compared"]["outdated"] if "Fig. 3, all four" in sentence]
    assert len(told) == 1
    assert "0.05" in told[0]
    assert "0.25" in told[0]
    assert found["compared"]["differing"] == []
    assert found["compared"]["same"] > 0, "ratios and orders are as they were"


def edited(members: Files, edit: Callable[[dict[str, Any]], None]) -> Files:
    """Edit the document alone."""
    document = json.loads(members["bundle.json"])
    edit(document)
    return members | {"bundle.json": json.dumps(document).encode()}


def _claim(document: dict[str, Any], where: str, name: str) -> dict[str, Any]:
    figures: list[dict[str, Any]] = document["figures"]
    (figure,) = (one for one in figures if (one["paper"], one["where"]) == ("par4d", where))
    claims: list[dict[str, Any]] = figure["claims"]
    (found,) = (one for one in claims if one["name"] == name)
    return found


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [("tolerance", 0.5, "outdated"), ("digest", "0" * 64, "outdated"), ("name", "no such claim", "outdated")],
)
def test_an_edited_verdict_is_told(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object, named: str
) -> None:
    members = edited(contents(packed), lambda document: _claim(document, "Fig. 3", "all four").update({key: value}))
    found = compared(capsys, 1, "--compare", str(written(tmp_path / "edited.zip", members)))
    assert len(found["compared"][named]) == 1


def test_another_verdict_in_a_document_differs(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def better(document: dict[str, Any]) -> None:
        for one in _claim(document, "Fig. 3", "all four")["findings"]:
            one["verdict"] = "better"

    file = written(tmp_path / "edited.zip", edited(contents(packed), better))
    found = compared(capsys, 1, "--compare", str(file))
    assert [(one["was"], one["now"]) for one in found["compared"]["differing"]] == [
        ("better (who is ahead)", "reproduces (who is ahead)")
    ]


def test_facts_that_are_others_here_are_named(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = contents(packed)
    name = "systems/frontier.yaml"
    members[name] += b"\n# another peak\n"

    def listed(document: dict[str, Any]) -> None:
        document["files"][name]["sha256"] = hashlib.sha256(members[name]).hexdigest()

    file = written(tmp_path / "other.zip", edited(members, listed))
    assert compared(capsys, 0, "--compare", str(file))["compared"]["facts"] == [name]


def _result_of(members: Files) -> str:
    return next(name for name in members if name.startswith("results/"))


def damage(members: Files) -> tuple[Files, str]:
    name = _result_of(members)
    return members | {name: members[name].replace(b"1", b"2", 1)}, name


def lose(members: Files) -> tuple[Files, str]:
    name = _result_of(members)
    return {one: text for one, text in members.items() if one != name}, name


def climb(members: Files) -> tuple[Files, str]:
    return members | {"results/../../evil.json": b"{}"}, "results/../../evil.json"


def hide(members: Files) -> tuple[Files, str]:
    return members | {"results/more.json": b"{}"}, "results/more.json"


def root(members: Files) -> tuple[Files, str]:
    return members | {"/etc/evil": b""}, "/etc/evil"


def database(members: Files) -> tuple[Files, str]:
    return members | {"results/more.db": b"SQLite"}, "results/more.db"


def compressed(members: Files) -> tuple[Files, str]:
    return members | {"results/more.json.gz": b"{}"}, "results/more.json.gz"


def no_document(members: Files) -> tuple[Files, str]:
    return {name: text for name, text in members.items() if name != "bundle.json"}, "bundle.json"


def a_list(members: Files) -> tuple[Files, str]:
    return members | {"bundle.json": b"[1]"}, "bundle.json"


def newer(members: Files) -> tuple[Files, str]:
    return edited(members, lambda document: document.update({"version": 2})), "version 2"


@pytest.mark.parametrize("plant", [damage, lose, climb, hide, root, database, compressed, no_document, a_list, newer])
def test_a_bundle_that_is_not_whole_is_refused_by_name(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], plant: Callable[[Files], tuple[Files, str]]
) -> None:
    before = {*tmp_path.rglob("*")}
    members, named = plant(contents(packed))
    file = written(tmp_path / "planted.zip", members)
    assert main(["reproduce", "--compare", str(file)]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert said.err.count("\n") == 1
    assert {*tmp_path.rglob("*")} == before | {file}


def test_links_twins_and_bytes_that_are_off_are_refused(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = contents(packed)
    link = zipfile.ZipInfo("results/link.json")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(written(tmp_path / "link.zip", members), "a") as archive:
        archive.writestr(link, "/etc/passwd")
    twin = written(tmp_path / "twin.zip", members)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(twin, "a") as archive:
        archive.writestr(_result_of(members), b"{}")
    whole = packed.read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    off = bytearray(whole)
    off[len(off) // 2] ^= 0xFF
    (tmp_path / "off.zip").write_bytes(bytes(off))
    for name, named in (("link", "link.json"), ("twin", _result_of(members)), ("cut", "cut.zip"), ("off", "off.zip")):
        assert main(["reproduce", "--compare", str(tmp_path / f"{name}.zip")]) == 2
        said = capsys.readouterr().err
        assert named in said, name
        assert said.count("\n") == 1
    monkeypatch.setattr(bundles, "MOST_BYTES", 100)
    assert main(["reproduce", "--compare", str(packed)]) == 2
    assert "bundle.json" in capsys.readouterr().err


def test_a_bundle_that_is_judged_otherwise_is_not_written(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: half of the results are forgotten."""
    every = bundles._results
    monkeypatch.setattr(bundles, "_results", lambda *of: dict(list(every(*of).items())[::2]))
    file = tmp_path / "half.zip"
    assert main(["reproduce", "--results", str(measured), "--bundle", str(file)]) == 1
    assert "half.zip" in capsys.readouterr().err
    assert not file.exists()


def test_nothing_measured_is_nothing_to_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--results", str(tmp_path), "--bundle", str(tmp_path / "b.zip")]) == 2
    assert "--bundle" in capsys.readouterr().err


def test_a_document_without_a_verdict_on_a_measurement_is_nothing_to_compare_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, folder = tmp_path / "kept.json", tmp_path / "none"
    folder.mkdir()
    asked = ("--paper", "par4d", "--results", str(folder))
    assert main(["reproduce", *asked, "--out", str(kept)]) == 0
    assert main(["reproduce", *asked, "--compare", str(kept)]) == 2
    assert "kept.json" in capsys.readouterr().err


def test_facts_outside_of_their_folders_are_not_read(packed: Path, tmp_path: Path) -> None:
    """Planted: a document, in no archive, that names such files."""
    kept = bundles.unpack(packed, tmp_path, "b")
    (listed, *_) = kept.files.values()
    outside = {"systems/../../../dev/zero": listed, "published//etc/passwd": listed}
    assert bundles.changed_facts(kept.model_copy(update={"files": outside})) == []


def test_packages_of_other_versions_are_named(packed: Path, tmp_path: Path) -> None:
    kept = bundles.unpack(packed, tmp_path, "b")
    older = kept.model_copy(update={"origin": Origin(commit="a" * 40, dirty=True, versions={"torch": "1.0"})})
    said = comparison.as_text(older, comparison.Compared(3, (), ()), packed)
    assert "a" * 12 in said
    assert "torch 1.0" in said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--compare", "/nowhere.zip"), "/nowhere.zip"),
        (("--compare", __file__), Path(__file__).name),
        (("--compare", "x", "--bundle", "y"), "--bundle"),
        (("--compare", "x", "--system", "local"), "--system"),
        (("--list", "--bundle", "y"), "--bundle"),
        (("--run", "--dry-run", "--out", "y"), "--out"),
        (("--run", "--dry-run", "--fail-on", "differs"), "--fail-on"),
    ],
)
def test_options_that_go_together_with_nothing_are_named(
    options: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *options]) == 2
    assert named in capsys.readouterr().err
