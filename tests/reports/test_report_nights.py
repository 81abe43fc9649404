"""The pages of nights: what got worse is seen first, everything is explained, nothing is claimed that isn't known."""

import csv
import math
import re
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import HOSTILE
from reading import in_order
from reading import table as rows
from sample_nights import FIRST, SLOWED, SLOWER_FROM, STEADY, case, night_name, referred, session, slowed, store, timed
from test_report_browser import CHROMIUM, LOOK, OPTIONS, ask_each
from test_report_pages import read, visible
from waiting import LONG_S

from reports.nights import page as nights_page
from reports.nights.page import chart
from reports.nights.report import night_reports
from reports.page import Download, Figures, Page
from reports.plots.svg import inline
from reports.read.history import Night, history
from reports.read.load import load
from reports.site import build
from systems import references

PAGES, WIDTHS = ("nights-frontier", "index"), (1400, 400)
SLOW, STILL = SLOWED.replace("%", ""), STEADY.replace("%", "")


def built(folder: Path, sessions: list[dict[str, Any]]) -> Path:
    """Build a report of these sessions, without references."""
    store(folder / "results" / "results.db", sessions)
    build([folder / "results"], folder / "site")
    return folder / "site"


def two_systems() -> list[dict[str, Any]]:
    return [*slowed(2, system="one"), *slowed(3, system="two")]


def system_page(database: Path) -> Page:
    (system,) = nights_page.pages([history(database, "frontier")])
    return system.page


def test_the_first_page_says_in_one_line_that_something_is_worse_and_leads_to_the_night(nightly_site: Path) -> None:
    page = (nightly_site / "index.html").read_text()
    (line,) = re.findall(r'<li class="worse">.*?</li>', page, re.DOTALL)
    words = " ".join(re.sub(r"<[^>]*>", " ", line).split())
    assert in_order(words, "▲ Worse frontier", night_name(62), "1 got worse", SLOW, "1 same", "Nights of frontier")
    assert 'href="nights-frontier.html"' in line
    assert page.index('class="notices"') < page.index('class="studies"')


def test_the_page_has_the_episode_with_its_culprit_and_what_changed(nightly_site: Path) -> None:
    words = visible(nightly_site / "nights-frontier.html")
    alarm = words[words.index(f"{SLOW}: time_per_iteration") :]
    assert re.search(r"^[^%]* [78]\.\d % longer", alarm)
    assert in_order(alarm, night_name(SLOWER_FROM), "Culprit: compute", "torch 2.9.0 -> 2.10.0", within=150)
    assert in_order(words, "2 figures", "0.2 times")


def test_the_page_lists_the_episode(nightly_site: Path) -> None:
    (episode,) = rows(nightly_site, "nights-frontier-episodes")
    assert (episode["since"], episode["found"], episode["ended"]) == (night_name(SLOWER_FROM), night_name(62), "")
    assert (episode["state"], episode["shape"]) == ("open", "step")
    assert float(episode["size"]) == pytest.approx(0.08, abs=0.01)
    assert f"{SLOW} time_per_iteration" in episode["figures"]
    assert episode["updated"] == "torch 2.9.0 -> 2.10.0"


def test_the_table_of_verdicts_has_numbers_to_compute_with_and_to_read(nightly_site: Path) -> None:
    slow, still = rows(nightly_site, "nights-frontier-verdicts")
    assert (slow["verdict"], still["verdict"]) == ("worse", "same")
    assert (slow["test"], slow["figure"], slow["jobs"]) == (SLOW, "time_per_iteration", "3")
    assert float(slow["value"]) / float(slow["usual"]) - 1 == pytest.approx(float(slow["change"]))
    assert float(slow["low"]) < 0.08 < float(slow["high"])
    page = (nightly_site / "nights-frontier.html").read_text()
    assert '<td class="bad">worse</td>' in page
    assert re.search(r'<td class="n" data-s="19\.\d+">19\.\d\d s</td>', page)


def test_the_figure_that_got_worse_comes_first_with_the_nights_of_its_episode_updates_and_beginning(
    nightly_site: Path,
) -> None:
    page = (nightly_site / "nights-frontier.html").read_text()
    assert re.findall(r'<section id="([^"]+)"', page) == ["night", "episodes", "figures", "methods"]
    slow, still = (part.split("</figure>")[0] for part in page.split("<figure>\n<h3>")[1:3])
    assert slow.startswith(f"{SLOW}, time_per_iteration")
    assert [part.count('style="fill: var(--red)"') for part in (slow, still)] == [3, 0]
    assert [">updated<" in part for part in (slow, still)] == [True, True]
    assert ["stroke-dasharray: 1.5" in part for part in (slow, still)] == [True, False]
    assert in_order(slow, "worse, episode", night_name(SLOWER_FROM))


def test_a_figures_csv_has_every_night_with_its_jobs_its_band_and_its_verdict(nightly_site: Path) -> None:
    nights = rows(nightly_site, "nights-frontier-figure-slowed-n-512-time-per-iteration")
    assert [night["night"] for night in nights] == [night_name(number) for number in range(63)]
    assert {night["jobs"] for night in nights} == {"3"}
    assert all(float(night["least"]) <= float(night["value"]) <= float(night["most"]) for night in nights)
    assert [night["usual"] != "" for night in nights] == [False] * 20 + [True] * 43
    assert all(float(night["low"]) < float(night["change"]) < float(night["high"]) for night in nights[20:])
    assert [night["episode_since"] != "" for night in nights] == [False] * SLOWER_FROM + [True] * 3
    assert [place for place, night in enumerate(nights) if night["level"]] == [SLOWER_FROM]
    assert [place for place, night in enumerate(nights) if night["updated"]] == [SLOWER_FROM]
    assert len(rows(nightly_site, "nights-frontier-all")) == 126


def test_what_comes_and_goes_is_a_line_and_learnt_and_no_better_afterwards(tmp_path: Path) -> None:
    runs = (*range(70, 78), *range(100, 108))
    quiet, slow = slowed(130, since=130), slowed(130, since=0, by=1.2)
    sessions = [(slow if at in runs else quiet)[at] for at in range(130)]
    with referred(store(tmp_path / "results.db", sessions)) as database:
        build([tmp_path], tmp_path / "site")
        (line,) = night_reports(history(database, "frontier"), references.references("frontier"))[0].recurring
    assert in_order(line, "16 of 130 nights", "2 runs", SLOW, "2", "%")
    assert in_order(visible(tmp_path / "site" / "nights-frontier.html"), "Slowdowns that come and go", line)
    assert {one["state"] for one in rows(tmp_path / "site", "nights-frontier-episodes")} == {"learnt"}
    assert {one["way"] for one in rows(tmp_path / "site", "nights-frontier-all")} == {"", "worse"}


def test_nights_of_nothing_worse_are_fine(tmp_path: Path) -> None:
    with referred(store(tmp_path / "results.db", slowed(30, since=99))):
        build([tmp_path], tmp_path / "site")
    words = visible(tmp_path / "site" / "index.html")
    assert in_order(words, "✓ Fine frontier", night_name(29), "2 same")
    assert "No figure has got worse" in visible(tmp_path / "site" / "nights-frontier.html")


def test_without_references_nothing_is_judged_and_no_band_is_drawn(tmp_path: Path) -> None:
    site = built(tmp_path, slowed(8, since=99))
    assert in_order(visible(site / "index.html"), "? Not all judged", "frontier", night_name(7), "2 unknown")
    night = visible(site / "nights-frontier.html")
    assert "no references" in night
    assert in_order(night, "8 of", "20 jobs")
    figures = rows(site, "nights-frontier-all")
    assert {(one["usual"], one["low"], one["verdict"]) for one in figures} == {("", "", "unknown")}
    assert "opacity: 0.16" not in (site / "nights-frontier.html").read_text()


def test_references_that_were_edited_judge_nothing_and_the_page_says_why(tmp_path: Path) -> None:
    with referred(store(tmp_path / "results.db", slowed(25))):
        file = references.path_of("frontier")
        file.write_text(file.read_text().replace("made:", "made: x", 1).replace("system: frontier", "system: other"))
        build([tmp_path], tmp_path / "site")
    assert in_order(visible(tmp_path / "site" / "nights-frontier.html"), "`par4d", "--system frontier`")
    assert "Not all judged" in visible(tmp_path / "site" / "index.html")


def test_a_failed_test_is_told_with_its_reason(tmp_path: Path) -> None:
    figures, record = timed(18.0, 0, {})
    tests = [case(STEADY, figures, record), case(SLOWED, {}, {}, failure="rank 3 was killed")]
    site = built(tmp_path, [session(tests, FIRST, night_name(0))])
    assert "▲ Failed frontier" in visible(site / "index.html")
    failed, unknown = rows(site, "nights-frontier-verdicts")
    assert (failed["verdict"], failed["test"], failed["why"]) == ("failed", SLOW, "rank 3 was killed")
    assert unknown["verdict"] == "unknown"
    assert '<td class="none">all</td>' in (site / "nights-frontier.html").read_text()


def test_each_system_has_a_line_and_a_page_of_its_own_also_without_a_file(tmp_path: Path) -> None:
    site = built(tmp_path, two_systems())
    assert (site / "index.html").read_text().count('<li class="unknown">') == 2
    menu = (site / "nights-one.html").read_text().split("</nav>")[0]
    assert re.findall(r'href="(nights-[^"]*)"[^>]*>Nights of ([^<]*)<', menu) == [
        ("nights-one.html", "one"),
        ("nights-two.html", "two"),
    ]


def test_nights_of_several_databases_are_joined_and_a_copy_counts_once(tmp_path: Path) -> None:
    nights = slowed(6)
    store(tmp_path / "a" / "results.db", nights[2:])
    store(tmp_path / "b" / "copy.db", nights[2:4])
    store(tmp_path / "c" / "results.db", nights[:3])
    (found,) = load([tmp_path]).histories
    assert [night.name for night in found.nights] == [night_name(number) for number in range(6)]
    assert [len(night.jobs) for night in found.nights] == [2] * 6
    store(tmp_path / "one" / "results.db", [nights[number] for number in (2, 0, 1)])
    (stored,) = load([tmp_path / "one"]).histories
    assert [night.name for night in stored.nights] == [night_name(number) for number in (2, 0, 1)]


def test_of_jobs_started_by_hand_the_report_tells_what_they_measured_and_speaks_of_no_night(tmp_path: Path) -> None:
    figures, record = timed(18.0, 0, {})
    measured = record | {"labels": record["labels"] | {"study": "strong_scaling"}}
    store(tmp_path / "results.db", [session([case(STEADY, figures, measured)], FIRST + timedelta(days=1))])
    (found,) = load([tmp_path]).histories
    assert not found.nightly
    first_page, _ = build([tmp_path], tmp_path / "site")
    assert not [page.name for page in first_page.parent.glob("*.html") if page.name.startswith("nights-")]
    said = visible(first_page)
    assert not re.search("night|judged", said, re.IGNORECASE)
    studies = re.findall(r'<h3><a href="(\w+).html">', first_page.read_text())
    assert studies == ["strong_scaling"]  # what wasn't measured has a line, and no card
    store(tmp_path / "more.db", slowed(3)[2:])  # from here on there is one
    build([tmp_path], tmp_path / "site")
    assert "Not all judged" in visible(first_page)


def test_a_database_is_read_once_for_its_results_and_the_nights_of_all_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path / "results.db", two_systems())
    opened: list[object] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *words, **known: opened.append(words) or connect(*words, **known))
    loaded = load([tmp_path])
    assert len(opened) == 1
    assert [one.system for one in loaded.histories] == ["one", "two"]
    assert [len(one.nights) for one in loaded.histories] == [2, 3]


def drawn(page: Page) -> list[str]:
    """Return the titles of its charts."""
    blocks = [block for section in page.sections for block in section.blocks]
    return [figure.title for block in blocks if isinstance(block, Figures) for figure in block.figures]


def test_of_many_figures_the_telling_ones_are_drawn_and_the_csv_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nights_page, "MOST_CHARTS", 1)
    with referred(store(tmp_path / "results.db", slowed())) as database:
        found = system_page(database)
    assert drawn(found) == [f"{SLOW}, time_per_iteration"]
    (every,) = [block.csv for section in found.sections for block in section.blocks if isinstance(block, Download)]
    assert every["test"].value_counts().to_dict() == {SLOW: 63, STILL: 63}


def test_a_test_that_no_longer_runs_is_no_news(tmp_path: Path) -> None:
    nights = slowed()
    for night in nights:
        night["runs"][0]["testcases"].append(night["runs"][0]["testcases"][0] | {"display_name": "Other"})
    more = slowed(90)[63:]
    for night in more:
        del night["runs"][0]["testcases"][1]
    with referred(store(tmp_path / "results.db", [*nights, *more])) as database:
        found = system_page(database)
    assert drawn(found)[0] == f"{STILL}, time_per_iteration"
    assert in_order(
        str(next(one for one in found.sections if one.name == "figures")), night_name(62), "the last one that"
    )


def test_tests_of_one_name_are_told_apart(tmp_path: Path) -> None:
    figures, record = timed(18.0, 0, {})
    grids = [record, record | {"grid": "1x1x1x512"}]
    tests = [case(STEADY, figures, one, words=(words,)) for one in grids for words in ("-a", "-b")]
    names = drawn(system_page(store(tmp_path / "results.db", [session(tests, FIRST, "n")])))
    assert len(set(names)) == 4
    assert all(name.startswith(STILL) for name in names)
    assert [name for name in names if "1x1x1x512" in name and "options 2" in name]


def charted(values: Sequence[float], unit: str, **more: object) -> str:
    """Draw the chart of a figure with these values, of which none was expected."""
    usual = dict.fromkeys(("usual", "change", "low", "high", "level"), math.nan)
    data = {"at": range(len(values)), "value": values, "least": values, "most": values, "unit": unit} | usual
    table = pd.DataFrame(data | {"night": "n", "episode_since": "", "way": "", "updated": ""} | more)
    nights = [Night(f"n{at}", FIRST + timedelta(days=at), [], {}) for at in range(len(values))]
    return str(inline(chart(table, nights), name="c", title="t", description="d"))


@pytest.mark.parametrize("unit", ["s", "x", "B", "flop/s"])
@pytest.mark.parametrize(
    "values", [(1.0,), (2.0, 2.0), (1e308, 1e-308, 1.0), (1e-320, 5e-324), (1.0,) * 400, (1.0,) * 20 + (50.0,)]
)
def test_a_chart_can_be_drawn_of_any_positive_numbers(values: tuple[float, ...], unit: str) -> None:
    assert "<path" in charted(values, unit, level=9.0, way="worse", updated="torch", episode_since="n")


def test_a_night_far_off_does_not_flatten_the_others_but_the_last_ones_are_seen() -> None:
    def top(values: list[float]) -> float:
        return max(float(tick) for tick in re.findall(r"text-anchor: end[^>]*>([\d.]+)</text>", charted(values, "s")))

    usual = [10.0 + 0.01 * (number % 5) for number in range(60)]
    assert top([*usual, 100.0]) > 50
    assert top([*usual[:20], 100.0, *usual[20:]]) < 11


def test_hostile_nights_are_text_and_nothing_else(hostile_nightly_site: Path) -> None:
    pages = [*hostile_nightly_site.glob("nights-*.html"), hostile_nightly_site / "index.html"]
    assert len(pages) == 8
    for page in pages:
        seen = read(page)
        assert len(seen.all("script")) == len(seen.all("style")) == 1
        assert [name for _, attributes in seen.tags for name in attributes if name.startswith("on")] == []
        assert [tag for tag, _ in seen.tags if tag in ("img", "iframe", "image", "foreignobject")] == []
        assert not set("\x00\u202e") & set(page.read_text())
        ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for link in (link["href"] for link in seen.all("a")):
            file, _, place = link.partition("#")
            assert not file or (hostile_nightly_site / file).is_file()
            assert not place or f'id="{place}"' in (hostile_nightly_site / (file or page.name)).read_text()
    assert HOSTILE in visible(hostile_nightly_site / "index.html")
    names = [path.relative_to(hostile_nightly_site).as_posix() for path in hostile_nightly_site.rglob("*.*")]
    assert all(re.fullmatch(r"(data/)?[a-z0-9_-]+\.(html|csv)", name) for name in names)


def test_csv_cells_of_hostile_nights_are_never_formulas(hostile_nightly_site: Path) -> None:
    files = [path for path in (hostile_nightly_site / "data").iterdir() if path.name.startswith("nights-")]
    cells = [cell for path in files for row in csv.reader(path.open()) for cell in row]
    assert [cell for cell in cells if cell.startswith("'=1+1")]
    assert [cell for cell in cells if cell.startswith(("=", "+", "@", "-")) and not re.match(r"-\d", cell)] == []


def test_the_methods_say_what_verdicts_and_episodes_are_with_the_numbers_that_are_used(nightly_site: Path) -> None:
    for page in ("methods", "nights-frontier"):
        words = visible(nightly_site / f"{page}.html")
        assert all(said in words for said in ("0.2 times a year", "2.0 % or more", "3 nights at least"))


def console(page: Path, profile: Path) -> list[str]:
    """Return what the page has said to the browser's console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, "--enable-logging=stderr", f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("which", ["nightly_site", "hostile_nightly_site"])
def test_pages_of_nights_fit_their_window_and_fetch_nothing(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site: Path = request.getfixturevalue(which)
    nights = sorted(page.stem for page in site.glob("nights-*.html"))
    places = list(product((*nights, "index"), WIDTHS))
    seen = ask_each([((site / f"{name}.html").read_text(), width) for name, width in places], LOOK, tmp_path)
    for (name, width), look in zip(places, seen, strict=True):
        assert (look["requests"], look["outside"]) == ([], []), name
        assert look["room"] == width
        assert look["width"] <= width, name
        assert (look["figures"] > 0) == (name in nights)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_pages_of_nights_have_nothing_to_say_to_the_console(nightly_site: Path, tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text("<script>console.error('seen')</script>")
    assert console(loud, tmp_path / "profile")
    for name in PAGES:
        assert console(nightly_site / f"{name}.html", tmp_path / "profile") == []
