"""Verdicts in the text form of OpenMetrics, for a site's own monitoring (prometheus.io, VictoriaMetrics and others).

Each verdict is a state set: one sample a state, 1 of the one that it is. Measured values have their SI unit in the
name, and both ends of the interval beside them. prometheus_client writes names, escapes and the end of the file.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric, StateSetMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from engine.result.gate import Outcome
from reports import text
from reports.frames.reproduction import VERDICTS
from reports.nights.episodes import STATES, Episode
from reports.nights.judge import Verdict, Word
from reports.nights.report import NightReport

OUTCOMES: tuple[Outcome, ...] = ("pass", "fail", "undecided")
WORDS: tuple[Word, ...] = ("failed", "worse", "better", "same", "unknown")
NIGHT_UNITS = {
    **{"s": "seconds", "B": "bytes", "x": "ratio", "flop/s": "flops_per_second", "B/s": "bytes_per_second"},
    **{"tokens/s": "tokens_per_second", "images/s": "images_per_second", "token/J": "tokens_per_joule"},
    "image/J": "images_per_joule",
}
TARGETS = {
    "judged": "Numbers and comparisons of a figure that have a verdict.",
    "left_out": "Numbers and comparisons of a figure that nothing here can judge.",
}
ENDS = {"": "value", "_low": "low", "_high": "high"}
Labels = Mapping[str, str]


class _Families(Collector):
    """Families of metrics in the order in which they are made, each with all of its samples."""

    def __init__(self) -> None:
        self._gauges = dict[str, GaugeMetricFamily]()
        self._states = dict[str, StateSetMetricFamily]()

    def collect(self) -> Iterator[Metric]:
        yield from self._states.values()
        yield from self._gauges.values()

    def gauge(self, name: str, help_text: str, labels: Labels, value: float | None, unit: str = "") -> None:
        """Add a sample; a value that isn't known is left out."""
        if value is None or value != value:
            return
        if name not in self._gauges:
            self._gauges[name] = GaugeMetricFamily(name, help_text, labels=list(labels), unit=unit)
        self._gauges[name].add_metric(list(labels.values()), value)

    def state(self, name: str, help_text: str, labels: Labels, states: Iterable[str], state: str) -> None:
        """Add a state set."""
        if name not in self._states:
            self._states[name] = StateSetMetricFamily(name, help_text, labels=list(labels))
        self._states[name].add_metric(list(labels.values()), {one: one == state for one in states})

    def text(self) -> str:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()


def of_document(document: Mapping[str, Any]) -> str:
    """Write the document of `par4d reproduce` as metrics: figures, claims, what was measured, and thresholds."""
    found = _Families()
    for figure in document["figures"]:
        of_figure = {"paper": figure["paper"], "figure": figure["where"]}
        found.state("par4d_figure_verdict", "Verdict on a figure of a paper.", of_figure, VERDICTS, figure["verdict"])
        for key, said in TARGETS.items():
            found.gauge(f"par4d_figure_targets_{key}", said, of_figure, figure[key])
        for claim in figure["claims"]:
            labels = of_figure | {"claim": claim["name"]}
            found.state("par4d_claim_verdict", "Verdict on a claim.", labels, VERDICTS, claim["verdict"])
            for number, answer in enumerate(claim["answers"]):
                _answer(found, labels | {"target": f"{number}", "of": answer["of"] or answer["published"]}, answer)
            _findings(found, labels, claim)
    for one in document.get("thresholds", ()):
        _threshold(found, one)
    return found.text()


def _answer(found: _Families, labels: Labels, answer: Mapping[str, Any]) -> None:
    unit = answer["unit"]
    for end, value in zip(("low", "high"), answer["tolerated"], strict=True):
        name = f"par4d_tolerated_{end}_{unit}"
        found.gauge(name, f"The {end} end of the values that reproduce a published one.", labels, value, unit)


def _findings(found: _Families, labels: Labels, claim: Mapping[str, Any]) -> None:
    """Add what was measured of each target on each machine."""
    for one in claim["findings"]:
        measured = one["measured"]
        if measured is None:
            continue
        unit = claim["answers"][one["target"]]["unit"]
        of = dict(labels) | {"target": f"{one['target']}", "of": one["of"] or one["published"]}
        of |= {"machine": text.clean(measured["machine"], 60)}
        said = "Verdict on a target on one machine."
        found.state("par4d_measured_verdict", said, of, VERDICTS, one["verdict"])
        found.gauge("par4d_measured_jobs", "Jobs of a measurement.", of, measured["jobs"])
        for end, key in ENDS.items():
            name = f"par4d_measured{end}_{unit}"
            found.gauge(name, f"What was measured of a target: its {key} over jobs.", of, measured[key], unit)


def _threshold(found: _Families, one: Mapping[str, Any]) -> None:
    names = ("system", "suite", "point", "metric", "side")
    labels = {name: str(one[name]) for name in names}
    found.state("par4d_acceptance_outcome", "Outcome of a site's threshold.", labels, OUTCOMES, one["outcome"])
    found.gauge("par4d_acceptance_limit", "Limit of a threshold, in SI units.", labels, one["limit"])
    for end, key in ENDS.items():
        measured = one["measured"] or {}
        found.gauge(f"par4d_acceptance_measured{end}", f"Its {key} over jobs.", labels, measured.get(key))


def of_nights(nights: Iterable[NightReport]) -> str:
    """Write the verdicts of nights as metrics, each with the night's name, and the episodes of each."""
    found = _Families()
    for night in nights:
        of_night = {"system": night.system, "night": night.night.name}
        began = night.night.began.timestamp()
        found.gauge("par4d_night_start_seconds", "Start of a night.", of_night, began, "seconds")
        found.gauge("par4d_night_opened", "Episodes that a night opened: its alarms.", of_night, len(night.opened))
        open_now = len(night.opened) + len(night.still_open)
        found.gauge("par4d_night_open", "Episodes that are open after a night.", of_night, open_now)
        for episode in (*night.opened, *night.still_open, *night.over):
            since = night.judged.nights[episode.since].name
            _episode(found, of_night | {"episode": f"{episode.number}", "since": since}, episode)
        tests = defaultdict[tuple[str, str], int](int)
        for verdict in night.verdicts:
            key = (night.named(verdict.key), verdict.figure)
            tests[key] += 1
            again = f" ({tests[key]})" if tests[key] > 1 else ""
            labels = of_night | {"test": key[0] + again, "figure": text.clean(verdict.figure, 80)}
            _night(found, labels, verdict)
    return found.text()


def _episode(found: _Families, labels: Labels, one: Episode) -> None:
    found.state("par4d_episode_state", "State of an episode.", labels, STATES, one.state)
    found.gauge("par4d_episode_figures", "Figures of an episode.", labels, len(one.figures))
    said = "Factor by which an episode's worst figure is worse, less one."
    found.gauge("par4d_episode_size_ratio", said, labels, one.sizes[0], "ratio")


def _night(found: _Families, labels: Labels, verdict: Verdict) -> None:
    found.state("par4d_night_verdict", "Verdict on a figure of a night.", labels, WORDS, verdict.word)
    is_in = float(verdict.slowdown is not None)
    found.gauge("par4d_night_in_episode", "Whether a figure is in an open episode.", labels, is_in)
    for end, value in (("", verdict.change), ("_low", verdict.low), ("_high", verdict.high)):
        said = "Change of a figure by what the nights before let expect."
        found.gauge(f"par4d_night_change{end}_ratio", said, labels, value, "ratio")
    unit = NIGHT_UNITS.get(verdict.unit, "count")
    found.gauge(f"par4d_night_figure_{unit}", "Median of a figure over a night's jobs.", labels, verdict.value, unit)
    found.gauge(f"par4d_night_expected_{unit}", "What the nights before let expect.", labels, verdict.usual, unit)
