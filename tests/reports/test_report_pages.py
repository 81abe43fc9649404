"""The pages as files: complete, self-contained, honest about what is missing, safe with hostile strings."""

import csv
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reading import built, in_order
from sample_results import gemm, save, series, train

from engine.errors import RunError, UsageError
from reports.html import to_csv
from reports.page import Column, Table
from reports.pages.study import all_studies
from reports.site import build
from reports.text import clean, significant, slug, slugs

PAGES = (
    *("index", "weak_scaling", "strong_scaling", "overlap", "validation", "samples", "peak", "peers", "kernels"),
    *("energy", "planning", "model_validation", "reproduction"),
    "methods",
)
VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Seen(HTMLParser):
    """A page as a browser parses it: tags with attributes, visible text, and tags left open."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(page: Path) -> Seen:
    seen = Seen()
    seen.feed(page.read_text())
    assert seen.open == []
    return seen


def visible(page: Path) -> str:
    return " ".join(" ".join(read(page).text).split())


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("which", ["site", "hostile_site"])
def test_a_page_needs_no_other_file_to_be_drawn(name: str, which: str, request: pytest.FixtureRequest) -> None:
    seen = read(request.getfixturevalue(which) / f"{name}.html")
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in seen.all("img"))
    loading = ("iframe", "object", "embed", "audio", "video", "source", "image", "base", "foreignobject")
    assert [tag for tag, _ in seen.tags if tag in loading] == []
    assert [link["href"] for link in seen.all("link")] == ["data:,"]
    assert [script for script in seen.all("script") if script] == []
    assert not any("url(" in attributes.get("style", "") for _, attributes in seen.tags)
    assert "@import" not in (request.getfixturevalue(which) / f"{name}.html").read_text()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("which", ["site", "hostile_site"])
def test_every_link_leads_to_a_file_of_the_site_or_a_place_in_the_page(
    name: str, which: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(which)
    seen = read(folder / f"{name}.html")
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in seen.all("a") + seen.all("use"):
        if link["href"].startswith("#"):
            assert link["href"][1:] in ids
        else:
            file, _, place = link["href"].partition("#")
            assert (folder / file).is_file()
            assert not place or f'id="{place}"' in (folder / file).read_text()


@pytest.mark.parametrize("name", PAGES)
def test_figures_have_a_role_a_title_a_description_and_a_csv(site: Path, name: str) -> None:
    html = (site / f"{name}.html").read_text()
    seen = read(site / f"{name}.html")
    ids = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    for svg in seen.all("svg"):
        assert svg["role"] == "img"
        assert set(svg["aria-labelledby"].split()) <= ids
    figures = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert len(figures) == len(seen.all("svg"))
    for figure in figures:
        assert re.search(r"<desc[^>]*>[^<]{20,}", figure)
        (address,) = re.findall(r'href="(data/[^"]+\.csv)"', figure)
        assert len(list(csv.reader((site / address).open()))) > 1


def test_the_weak_scaling_page_shows_ours_beside_the_published_series(site: Path) -> None:
    html = (site / "weak_scaling.html").read_text()
    frontier, local = html.split('id="series-frontier-gpu-bf16"')[1].split('id="series-local-cpu-fp32"')
    assert ">axonn-sc24</text>" in frontier
    assert ">axonn-sc24</text>" not in local
    rows = list(csv.DictReader((site / "data" / "weak_scaling-frontier-gpu-bf16-against.csv").open()))
    assert [int(row["ranks"]) for row in rows] == [512, 1024, 2048, 4096, 8192]
    assert float(rows[0]["hardware_flops_per_s_published"]) == pytest.approx(40.4e15)
    assert float(rows[4]["time_s_published"]) == pytest.approx(18.4831)


def test_published_times_of_another_batch_size_are_not_compared(tmp_path: Path) -> None:
    save([train(sequences=4096), train(ranks=1024, model="gpt-10b", sequences=4096, job=1)], tmp_path)
    build([tmp_path], tmp_path / "site")
    (html,) = re.findall(
        r"<h3>Time per batch.*?</figure>", (tmp_path / "site" / "weak_scaling.html").read_text(), re.DOTALL
    )
    assert "axonn-sc24" not in html
    assert "of another batch" in visible(tmp_path / "site" / "weak_scaling.html")


def test_the_ranges_of_every_framework_of_a_paper_stand_beside_ours(tmp_path: Path) -> None:
    known = {"system": "summit", "series": "axonn-ipdps22", "dtype": "fp16", "time_s": 300.0}
    same = train(ranks=48, model="gpt-12b", grid="6x1x8x1", sequences=16384, **known)  # type: ignore[arg-type]
    other = train(ranks=96, model="gpt-24b", grid="6x1x16x1", sequences=8192, job=1, **known)  # type: ignore[arg-type]
    save([same, other], tmp_path)
    build([tmp_path], tmp_path / "site")
    (file,) = (tmp_path / "site" / "data").glob("weak_scaling-summit-*-ranges.csv")
    rows = {(row["framework"], int(row["ranks"])): row for row in csv.DictReader(file.open())}
    frameworks = ("AxoNN", "DeepSpeed", "Megatron-LM")
    assert rows.keys() == {(framework, ranks) for framework in frameworks for ranks in (48, 96)}
    assert [rows[one, 48]["shares"] for one in frameworks] == ["49.4 to 54.78 %", "39 to 42 %", "21 to 41 %"]
    assert rows["AxoNN", 48]["times"].split(" s")[:2] == ["247.5", " to 274.4"]
    assert rows["AxoNN", 96]["times"] == "", "the batch is another one"
    shown = visible(tmp_path / "site" / "weak_scaling.html")
    assert in_order(shown.split("Against published ranges")[1], "247.5 s", "274.4 s")
    assert "axonn-ipdps22 section VII-B" in shown


def test_the_published_table_is_complete_and_marked_as_published(site: Path) -> None:
    text = visible(site / "weak_scaling.html")
    published = text[text.index("Published weak scaling") :]
    assert in_order(published, "axonn-sc24", "III")
    for number in ("Sustained, Pflop/s", "1,381", "571.4", "22.0 %", "33.8 %", "30.74 s", "Megatron-LM", "par4d"):
        assert number in published


def test_a_failed_point_is_shown_as_failed_with_its_reason_and_without_numbers(site: Path) -> None:
    html = (site / "weak_scaling.html").read_text()
    begins = '<tr><td class="n" data-s="16384">16,384</td><td>gpt-160b</td><td>8x8x32x8</td><td>'
    (row,) = re.findall(begins + ".*?</tr>", html.split("Measured points")[1].split("</tbody>")[0])
    assert row.count(">failed</td>") == 9
    assert "0 of 1" in row
    assert "rank 3 was killed" in html.split("Failed jobs")[1]


def test_an_unknown_peak_is_said_to_be_unknown_and_never_zero(site: Path) -> None:
    local = (site / "weak_scaling.html").read_text().split('id="series-local-cpu-fp32"')[1].split("<section")[0]
    assert "no advertised peak is" in local
    assert '<td class="n none">no peak' in local
    assert ">0.0 %<" not in local


def test_provenance_lists_every_job_with_its_result_file(site: Path) -> None:
    rows = list(csv.DictReader((site / "data" / "weak_scaling-provenance.csv").open()))
    assert len(rows) == 25
    assert all(Path(row["source"]).is_file() and row["commit"] and row["hosts"] and row["versions"] for row in rows)
    assert {row["dirty"] for row in rows} == {"clean"}


def test_the_index_lists_what_was_skipped_and_why(site: Path) -> None:
    text = visible(site / "index.html")
    assert "cut.json is cut short" in text
    assert "skipped 1 listed below" in text


def test_without_results_every_page_says_what_to_run(tmp_path: Path) -> None:
    build([], tmp_path / "site")
    for name in set(PAGES) - {"methods", "planning"}:
        assert "Nothing measured yet" in visible(tmp_path / "site" / f"{name}.html")
    assert "suites/weak_scaling.py --system local" in visible(tmp_path / "site" / "index.html")
    assert "Published weak scaling" in visible(tmp_path / "site" / "weak_scaling.html")


def test_runs_of_no_study_are_listed_on_the_index(tmp_path: Path) -> None:
    built(tmp_path, [train(study="by hand", system="mine")])
    assert "Runs of no study" in visible(tmp_path / "site" / "index.html")
    assert (tmp_path / "site" / "data" / "index-other.csv").is_file()


@pytest.mark.parametrize("name", PAGES)
def test_hostile_strings_are_text_and_nothing_else(hostile_site: Path, name: str) -> None:
    seen = read(hostile_site / f"{name}.html")
    assert len(seen.all("script")) == 1
    assert len(seen.all("style")) == 1
    assert [attributes for _, attributes in seen.tags if any(key.startswith("on") for key in attributes)] == []
    html = (hostile_site / f"{name}.html").read_text()
    assert not set("\x00\u202e") & set(html)
    if name == "weak_scaling":
        assert "passwd" in html
        assert "<script>document.title='ran'</script>" in visible(hostile_site / f"{name}.html")


def test_csv_names_are_plain_and_stay_in_their_folder(hostile_site: Path) -> None:
    names = [path.relative_to(hostile_site).as_posix() for path in hostile_site.rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"(data/)?[a-z0-9_-]+\.(html|csv)", name) for name in names)


def test_csv_cells_of_foreign_text_are_never_formulas(hostile_site: Path) -> None:
    cells = [cell for path in (hostile_site / "data").iterdir() for row in csv.reader(path.open()) for cell in row]
    assert "'=1+1" in cells
    harmful = [cell for cell in cells if cell.startswith(("=", "+", "@", "-")) and not re.fullmatch(r"-\d.*", cell)]
    assert harmful == []


def test_csv_keeps_negative_numbers_as_numbers() -> None:
    import pandas as pd

    assert to_csv(pd.DataFrame({"a": [-1.5, None], "b": ["-1", "@x"]})) == "a,b\n-1.5,'-1\n,'@x\n"


def test_a_long_table_is_cut_in_the_page_and_whole_in_the_csv() -> None:
    import pandas as pd

    table = Table("T", (Column("A", "a"),), pd.DataFrame({"a": range(1500)}), "t")
    assert (len(list(table.rows())), table.left_out, len(table.csv)) == (1000, 500, 1500)


def test_building_again_replaces_the_pages_and_leaves_other_files_alone(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build([], out)
    (out / "mine.txt").write_text("keep")
    save(series("local"), tmp_path / "r")
    build([tmp_path / "r"], out)
    assert "gpt-local-2" in (out / "weak_scaling.html").read_text()
    assert (out / "mine.txt").read_text() == "keep"
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build([], out)
    before = (out / "index.html").read_text()
    (out / "data").rename(out / "moved")
    (out / "data").write_text("in the way")
    save([gemm()], tmp_path / "r")
    with pytest.raises(RunError, match="can't be written"):
        build([tmp_path / "r"], out)
    assert (out / "index.html").read_text() == before
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_a_file_is_no_place_for_a_report(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        build([], tmp_path / "file" / "site")


def test_every_study_has_its_own_name_and_place() -> None:
    studies = all_studies()
    assert [study.name for study in studies[:3]] == ["reproduction", "weak_scaling", "strong_scaling"]
    assert {*PAGES} - {"index", "methods"} < {study.name for study in studies}
    assert len({study.order for study in studies}) == len(studies)


def test_text_is_made_safe_and_short() -> None:
    assert clean("a\ufffe\uffff\ud800b") == "a\ufffd\ufffd\ufffdb"
    assert clean("a\nb\u202e" + "x" * 500, 10) == "a\ufffdb\ufffd" + "x" * 5 + "…"
    assert slug("../Ümläut & <b>") == "umlaut-b"
    assert slugs(["a b", "a-b", "<>", "()"]) == ["a-b", "a-b-2", "x", "x-2"]
    assert [significant(v) for v in (17.91274, 1019.9, 0.0421358, 0.0)] == ["17.91", "1,020", "0.04214", "0"]
