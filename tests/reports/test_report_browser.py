"""The pages in a real browser: nothing foreign runs, nothing is fetched, nothing overflows, tables sort.

A page is shown unchanged in a frame of the wanted width, and the page around it looks inside.
"""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sample_systems import MANY
from waiting import LONG_S

from reports.pages.study import all_studies

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--dump-dom"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--virtual-time-budget=5000", "--window-size=1300,900"),
)
PAGES = ("index", *(study.name for study in all_studies()), "methods")
WIDTHS = (1280, 390)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
FRAME = '<iframe width="%d" height="900" style="border:0" srcdoc="%s"></iframe>'
HARNESS = """<meta charset="utf-8"><body>%s
<script>
addEventListener("load", () => {
  const look = (view, page) => { %s };
  const frames = [...document.querySelectorAll("iframe")].map((frame) => frame.contentWindow);
  document.body.dataset.answer = JSON.stringify(frames.map((view) => look(view, view.document)));
});
</script></body>"""

# The page's title, what it fetched, its width, and texts that stick out of their figure.
LOOK = """
page.querySelectorAll("details").forEach((one) => (one.open = true));
const outside = [];
for (const svg of page.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBoundingClientRect();
    const inside = box.left > frame.left - 1 && box.right < frame.right + 1;
    if (!inside || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      outside.push(svg.querySelector("title").textContent + ": " + text.textContent);
  }
}
return {
  title: page.title, outside, requests: view.performance.getEntriesByType("resource").map((entry) => entry.name),
  width: page.documentElement.scrollWidth, room: view.innerWidth,
  figures: page.querySelectorAll("svg, main img").length,
};
"""
SORT = """
const head = [...page.querySelectorAll("th")].find((th) => th.textContent === NAME);
const column = () => [...head.closest("table").tBodies[0].rows].map((row) => row.cells[head.cellIndex].textContent);
const states = [column()];
for (let press = 0; press < 2; press++) {
  head.querySelector("button").click();
  states.push([head.getAttribute("aria-sort"), ...column()]);
}
return states;
"""


def dom(address: str, profile: Path) -> str:
    """The elements of the page at this address after its scripts ran."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
    return done.stdout


def ask_each(pages: Sequence[tuple[str, int]], script: str, folder: Path) -> list[Any]:
    """Return the script's answer for each page of HTML, in a frame of the given width."""
    harness = folder / "harness.html"
    frames = "".join(FRAME % (width, html.escape(page)) for page, width in pages)
    harness.write_text(HARNESS % (frames, script), encoding="utf-8")
    found = re.search(r'data-answer="([^"]*)"', dom(harness.as_uri(), folder / "profile"))
    assert found, "the script returned nothing"
    told: list[Any] = json.loads(html.unescape(found[1]))
    return told


def ask(page: str, script: str, folder: Path) -> Any:
    """Return the script's answer for one page in a frame of the usual width."""
    return ask_each([(page, 1280)], script, folder)[0]


@pytest.fixture(scope="module", params=["site", "hostile_site"])
def looks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """Return the look of each page at each width, in one start of the browser."""
    folder = request.getfixturevalue(request.param)
    places = list(product(PAGES, WIDTHS))
    pages = [((folder / f"{name}.html").read_text(), width) for name, width in places]
    return dict(zip(places, ask_each(pages, LOOK, tmp_path_factory.mktemp("looks")), strict=True))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_fetches_nothing(name: str, looks: dict[tuple[str, int], Any]) -> None:
    for width in WIDTHS:
        seen = looks[name, width]
        assert seen["requests"] == []
        assert seen["outside"] == []
        assert seen["room"] == width
        assert seen["width"] <= width
        assert seen["figures"] > 0 or name in (
            "index",
            "methods",
            "gpu",
            "reproduction",
            "optimisations",
            "tensor_modes",
            "evaluation",
        )


def test_hostile_strings_run_nothing_even_without_the_security_policy(hostile_site: Path, tmp_path: Path) -> None:
    unprotected = [POLICY.subn("", (hostile_site / f"{name}.html").read_text()) for name in PAGES]
    assert [removed for _, removed in unprotected] == [1] * len(PAGES)
    seen = ask_each([(page, 1280) for page, _ in unprotected], LOOK, tmp_path)
    assert [one["title"].partition(" | ")[2] for one in seen] == ["Par4D"] * len(PAGES)


def test_the_security_policy_keeps_out_a_script_that_is_not_the_pages_own(site: Path, tmp_path: Path) -> None:
    page = (site / "peak.html").read_text().replace("</body>", "<script>document.title = 'ran'</script></body>")
    kept, unprotected = (ask(one, LOOK, tmp_path)["title"] for one in (page, POLICY.sub("", page)))
    assert kept.startswith("Peak")
    assert unprotected == "ran"


def test_numbers_sort_as_numbers_and_what_is_missing_stays_last(site: Path, tmp_path: Path) -> None:
    page = (site / "weak_scaling.html").read_text()
    first, up, down = ask(page, SORT.replace("NAME", '"Time per batch"'), tmp_path)
    assert (up[0], down[0]) == ("ascending", "descending")
    assert (up[-1], down[-1]) == ("failed", "failed")
    times = [float(cell.removesuffix(" s")) for cell in up[1:-1]]
    assert times == sorted(times)
    assert [float(cell.removesuffix(" s")) for cell in down[1:-1]] == times[::-1]
    assert sorted(first) == sorted(up[1:])


def test_texts_sort_with_the_numbers_in_them_in_order(site: Path, tmp_path: Path) -> None:
    _, up, down = ask((site / "weak_scaling.html").read_text(), SORT.replace("NAME", '"Model"'), tmp_path)
    assert up[1:] == ["gpt-5b", "gpt-10b", "gpt-20b", "gpt-40b", "gpt-80b", "gpt-160b"]
    assert down[1:] == up[:0:-1]


SYSTEMS_PAGES = ("index", "peak", "weak_scaling")
PRESSED = """<script>
const summary = document.querySelectorAll("summary")[7];
summary.click();
document.body.dataset.answer = location.hash + " " + summary.parentElement.open;
</script></body>"""


def test_pages_of_many_systems_fit_their_window_folded_and_unfolded(many_site: Path, tmp_path: Path) -> None:
    places = list(product(SYSTEMS_PAGES, WIDTHS))
    folded = LOOK.replace("one.open = true", "one.open = false")
    for script in (LOOK, folded):
        looks = ask_each(
            [((many_site / f"{name}.html").read_text(), width) for name, width in places], script, tmp_path
        )
        for (_, width), seen in zip(places, looks, strict=True):
            assert seen["outside"] == []
            assert seen["requests"] == []
            assert seen["width"] <= width == seen["room"]


def test_an_address_unfolds_the_part_that_it_names_alone(many_site: Path, tmp_path: Path) -> None:
    anchors = re.findall(r'<div id="(series-[^"]+)">', (many_site / "peak.html").read_text())
    address = f"{(many_site / 'peak.html').as_uri()}#{anchors[20]}"
    assert re.findall(r'<details open="">.*?<div id="([^"]*)"', dom(address, tmp_path / "p"), re.DOTALL) == [
        anchors[20]
    ]


def test_a_press_unfolds_a_part_and_the_address_remembers_it(many_site: Path, tmp_path: Path) -> None:
    page = POLICY.sub("", (many_site / "peak.html").read_text()).replace("</body>", PRESSED)
    (tmp_path / "pressed.html").write_text(page)
    anchors = re.findall(r'<div id="(series-[^"]+)">', page)
    (answer,) = re.findall(r'data-answer="([^"]*)"', dom((tmp_path / "pressed.html").as_uri(), tmp_path / "p"))
    assert html.unescape(answer) == f"#{anchors[7]} true"


def test_without_scripts_every_part_is_there_and_is_unfolded_by_the_browser(many_site: Path, tmp_path: Path) -> None:
    page = re.sub(r"<script>.*?</script>", "", (many_site / "peak.html").read_text(), flags=re.DOTALL)
    anchors = re.findall(r'<div id="(series-[^"]+)">', page)
    (tmp_path / "plain.html").write_text(page)
    address = f"{(tmp_path / 'plain.html').as_uri()}#{anchors[30]}"
    seen = dom(address, tmp_path / "p")
    assert re.findall(r'<details open="">.*?<div id="([^"]*)"', seen, re.DOTALL) == [anchors[30]]
    assert seen.count("<svg") == MANY
