"""Words of studies' pages, which are data in studies.yaml: titles, leads, commands, and notes on tables."""

from dataclasses import dataclass
from pathlib import Path

from engine import yaml_text
from engine.footprint.memory import USABLE
from engine.result.gate import CONFIDENCE
from engine.result.judges import bubble
from reports.text import paragraphs, percent


@dataclass(frozen=True, slots=True)
class Words:
    title: str
    summary: str
    lead: str
    run: tuple[str, ...] = ()
    """Commands that measure."""
    how: str = ""


_DATA = yaml_text.read(Path(__file__).with_name("studies.yaml"))
_KNOWN = {"confidence": CONFIDENCE, "bubble_off": percent(bubble.OFF), "bubble_uneven": percent(bubble.UNEVEN)}
NOTES = {
    "many": paragraphs("many", one_in=1 / (1 - CONFIDENCE))[0],
    "unlike": paragraphs("unlike", unequal="not the same for both sides")[0],
    "room": paragraphs("room", usable=percent(USABLE))[0],
}
for _name, _note in _DATA["notes"].items():
    NOTES[_name] = _note.format_map(_KNOWN | NOTES)
STUDIES = {
    name: Words(**words | {"run": tuple(words.get("run", ())), "how": words.get("how", "").format_map(NOTES)})
    for name, words in _DATA["studies"].items()
}
