"""The house stays in order: short files, a short README, and links of every README that lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("engine", "suites", "systems", "reports", "ci", "tests")
LONGEST, LONGEST_TEST, WORDS = 300, 500, 900


def test_no_file_is_longer_than_a_reader_takes_in() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert lines
    most = {name: LONGEST_TEST if name.startswith("tests/") else LONGEST for name in lines}
    assert {name: count for name, count in lines.items() if count > most[name]} == {}


def test_the_readme_is_read_in_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= WORDS


def test_links_of_every_readme_lead_somewhere() -> None:
    readmes = [ROOT / "README.md", *(ROOT / room / "README.md" for room in ROOMS if room != "tests")]
    for readme in readmes:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", readme.read_text()):
            path = (readme.parent / target).resolve() if target else readme
            assert path.exists(), f"{readme.relative_to(ROOT)} links {target}"
            assert not anchor or anchor in _anchors(path), f"{readme.relative_to(ROOT)} links {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """As GitHub and GitLab make them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
