"""Figures of the proof, which tests/reports/simulate_nights.py has simulated: episodes, and losses that are found."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field, ValidationError

from engine import yaml_text
from engine.errors import UsageError
from engine.result.gate import Outcome
from engine.schema import Record, first_problem
from reports import text
from reports.columns import columns_of
from reports.page import Column, Table

FILE = Path(__file__).with_suffix(".yaml")
QUIET_NOTE = (
    "Nights drawn at random, with this noise and no change: the upper end of what the episodes of a system-year may be "
    "(95 %)."
)
LOSS_NOTE = (
    "Nights of the same noises with a loss in some of their figures: the share of cases in which it was found in time. "
    "Outcomes are pass where the whole interval is as asked, fail where none of it is, else undecided."
)
OUTCOME = Column("Outcome", "outcome", numeric=False, bad=frozenset({"fail"}), good=frozenset({"pass"}))
KINDS: Mapping[str, str] = {
    **{"gauss": "normal", "t3": "heavy tails t3", "t2": "heavy tails t2", "out5": "single slow nights"},
    **{"weekly3": "weeks", "month": "months", "ar0.7": "autocorrelation 0.7", "ar0.95": "autocorrelation 0.95"},
    **{"walk": "slow random walks", "garch": "variance in clusters", "measured": "measured jobs"},
    **{"mixed": "all of these in one system", "bimodal10": "two kinds of nodes, a tenth of nights on the slower"},
    **{
        "bimodal30": "two kinds of nodes, 30 % of nights on the slower",
        "sticky3": "a slow group of nodes, for 3 nights",
    },
    **{"sticky10": "a slow group of nodes, for 10 nights", "out5runs": "runs of slow nights"},
}
"""Noises of simulate_nights.py in words."""
Share = Annotated[float, Field(ge=0, le=1)]


class Found(Record):
    """Share of cases in which a loss was found in time."""

    share: Share
    asked: Share
    outcome: Outcome


class Row(Record):
    """Noise, number of jobs a night, and what the nights with it have shown."""

    noise: str
    """Name in simulate_nights.py."""
    jobs: Annotated[int, Field(ge=1)]
    canary: bool = False
    """Whether a canary has seen what the figures share."""
    drift: Share = 0.0
    """Loss of every figure in a month."""
    years: Annotated[float, Field(gt=0)]
    """Simulated years of a system."""
    episodes_a_year: Annotated[float, Field(ge=0)]
    """Upper end of the interval."""
    asked: Annotated[float, Field(gt=0)]
    """Most episodes a year."""
    outcome: Outcome
    """Outcome of the episodes a year."""
    found: Mapping[str, Found] = {}
    """Losses, by name, such as "5 % at once, by night 60"."""

    @property
    def kind(self) -> str:
        return text.clean(KINDS.get(self.noise, self.noise), 60)

    @property
    def beside(self) -> str:
        """Return in words how its nights differ from others with its noise."""
        drift = f"with a drift of {100 * self.drift:g} % a month" if self.drift else ""
        canary = "with a canary" if self.canary else ""
        jobs = f"with {self.jobs} jobs a night" if self.jobs > 1 else ""
        return " ".join(filter(None, (drift, canary, jobs)))

    @property
    def title(self) -> str:
        return f"{self.kind} {self.beside}".strip()


class Proof(Record):
    """Rows of the file."""

    rows: tuple[Row, ...]


def proof(file: Path = FILE) -> Proof | None:
    """Read the figures of the proof; None where there is no file. Raises UsageError for one of another form."""
    if not file.exists():
        return None
    try:
        return Proof.model_validate(yaml_text.read(file))
    except ValidationError as error:
        raise UsageError(f"{file} is not a proof of the nights: {first_problem(error)}") from None


def words(of: Proof) -> list[str]:
    """Say which noises are covered, which losses are found in time, and what a site should do where they aren't."""
    quiet = defaultdict[tuple[bool, float], dict[str, list[str]]](lambda: defaultdict(list))
    losses = defaultdict[str, list[str]](list)
    for row in of.rows:
        outcome = "" if row.outcome == "pass" else f", {row.outcome}"
        figures = f"{row.beside} up to {row.episodes_a_year:.2f}{outcome}".strip()
        quiet[row.outcome != "pass", row.asked][row.kind].append(figures)
        for name, loss in row.found.items():
            outcome = "" if loss.outcome == "pass" else f"; asked {_share(loss.asked)}, {loss.outcome}"
            losses[name].append(f"{_share(loss.share)} ({row.title}{outcome})")
    said = []
    for (is_missed, asked), kinds in sorted(quiet.items()):
        sure = "Not covered, as there may be more than" if is_missed else "Covered, by at most"
        most = "1 episode" if asked == 1 else f"{asked:g} episodes"
        each = "; ".join(f"{kind} ({', '.join(figures)})" for kind, figures in kinds.items())
        said.append(f"{sure} {most} a year: {each}.")
    said += [
        f"A loss of {name}, is found in these shares of cases: {', '.join(each)}." for name, each in losses.items()
    ]
    return [*said, *_advice(of.rows)]


def _share(of: float) -> str:
    return f"{100 * of:.0f} %"


def _advice(rows: Sequence[Row]) -> Iterable[str]:
    """Write what a site should do, in the figures of these rows."""
    alone = {row.noise: row.episodes_a_year for row in rows if not (row.canary or row.drift or row.outcome == "pass")}
    calmed = [row for row in rows if row.canary and row.outcome == "pass" and row.noise in alone]
    if calmed:
        fewer = (f"{row.title} up to {row.episodes_a_year:.2f} in place of {alone[row.noise]:.2f}" for row in calmed)
        yield f"Keep the canary in every job; episodes a year of {'; '.join(fewer)}."
    missed = [(one.share, name, row.title) for row in rows for name, one in row.found.items() if one.outcome != "pass"]
    if missed:
        share, name, title = min(missed)
        why = f"in it the machine cancels, and {name}, is found here in {_share(share)} of cases ({title})"
        yield f"Run a paired night after an update, `ci/nightly --against COMMIT`: {why}."
    one = {(row.noise, name): loss.share for row in rows if row.jobs == 1 for name, loss in row.found.items()}
    more = [
        f"of {name}, with {row.jobs} jobs in {_share(loss.share)} of cases, with one in {_share(than)}"
        for row in rows
        for name, loss in row.found.items()
        if row.jobs > 1 and (than := one.get((row.noise, name), loss.share)) < loss.share
    ]
    if more:
        found = "; ".join(more)
        yield f"Run more jobs a night (`--jobs`) where jobs of one night differ: here a loss is found, {found}."
    yield "Leave out slow nodes, as what comes and goes is often theirs: `ci/nightly --exclude-slow`, on Slurm."


def tables(of: Proof) -> tuple[Table, Table]:
    """List the episodes of nights without a change, and the losses that were looked for."""
    quiet = [row.model_dump(exclude={"noise", "found"}) | {"noise": row.title} for row in of.rows]
    losses = [
        loss.model_dump() | {"noise": row.title, "loss": name} for row in of.rows for name, loss in row.found.items()
    ]
    noise = Column("Noise", "noise", numeric=False)
    most = Column("Episodes a year, at most", "episodes_a_year", "{:.2f}".format)
    years, asked = Column("Years", "years", "{:g}".format), Column("Asked", "asked", "{:g}".format)
    quiet_columns = columns_of(noise, years, most, asked, OUTCOME)
    lost, found = Column("Loss", "loss", numeric=False), Column("Found", "share", text.percent)
    loss_columns = columns_of(noise, lost, found, Column("Asked", "asked", text.percent), OUTCOME)
    return (
        Table("Episodes without a change", quiet_columns, pd.DataFrame(quiet, dtype=object), "proof", QUIET_NOTE),
        Table("Losses found", loss_columns, pd.DataFrame(losses, dtype=object), "losses", LOSS_NOTE),
    )
