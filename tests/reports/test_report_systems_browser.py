"""Pages of many systems in a real browser: nothing sticks out, and a part unfolds by its address and by a press."""

import html
import re
from itertools import product
from pathlib import Path

from sample_systems import MANY
from test_report_browser import LOOK, POLICY, WIDTHS, ask_each, dom
from test_report_browser import pytestmark as pytestmark

PAGES = ("index", "peak", "weak_scaling")
PRESSED = """<script>
const summary = document.querySelectorAll("summary")[7];
summary.click();
document.body.dataset.answer = location.hash + " " + summary.parentElement.open;
</script></body>"""


def test_pages_of_many_systems_fit_their_window_folded_and_unfolded(many_site: Path, tmp_path: Path) -> None:
    places = list(product(PAGES, WIDTHS))
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
