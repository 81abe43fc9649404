"""The pages of nights in a real browser: nothing overflows, nothing is fetched, nothing complains."""

import subprocess
from itertools import product
from pathlib import Path

import pytest
from test_report_browser import CHROMIUM, LOOK, OPTIONS, ask_each
from test_report_browser import pytestmark as pytestmark
from waiting import LONG_S

PAGES, WIDTHS = ("nights-frontier", "index"), (1400, 400)


def console(page: Path, profile: Path) -> list[str]:
    """What the page has said to the browser's console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, "--enable-logging=stderr", f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


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


def test_pages_of_nights_have_nothing_to_say_to_the_console(nightly_site: Path, tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text("<script>console.error('seen')</script>")
    assert console(loud, tmp_path / "profile")
    for name in PAGES:
        assert console(nightly_site / f"{name}.html", tmp_path / "profile") == []
