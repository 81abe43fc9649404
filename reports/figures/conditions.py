"""Table of what differs from the paper's runs: each fact of the paper beside that of the machines here."""

from collections.abc import Sequence

import pandas as pd

from engine.published.conditions import FACTS, Conditions
from reports import text
from reports.frames.reproduction.conditions import Compared, Standing
from reports.page import Column, Table
from reports.words import NOTES

WORDS: dict[Standing, str] = {"same": "the same", "differs": "differs", "said": ""}
"""Words of a comparison; of what isn't printed or recorded its cell says so."""


def condition_table(found: Sequence[Compared], name: str) -> Table | None:
    """Make a table of the facts of a figure's runs, a column for each machine; None where the paper names none."""
    papers = list(dict.fromkeys(one.conditions for one in found))
    machines = list(dict.fromkeys(one.machine for one in found))
    if not found:
        return None
    known = {fact.name for one in found for fact in one.facts}
    rows = [_row(fact, found, papers, machines) for fact in FACTS if fact in known]
    columns = [
        Column("Of the run", "fact", numeric=False),
        *(
            Column(f"{one.paper} on {one.system}, {one.where}", f"paper_{place}", numeric=False, missing="not printed")
            for place, one in enumerate(papers)
        ),
        *(
            Column(text.clean(machine, 60), f"here_{place}", numeric=False, missing="not recorded")
            for place, machine in enumerate(machines)
        ),
        Column("Compared", "compared", numeric=False, missing=""),
    ]
    data = pd.DataFrame(rows, columns=[column.key for column in columns])
    return Table("What differs from the paper's run", tuple(columns), data, name, NOTES["conditions"])


def _row(name: str, found: Sequence[Compared], papers: Sequence[Conditions], machines: Sequence[str]) -> dict[str, str]:
    mine = [(one, fact) for one in found for fact in one.facts if fact.name == name]
    row = {"fact": FACTS[name]}
    for one, fact in mine:
        row[f"paper_{papers.index(one.conditions)}"] = fact.paper
        row[f"here_{machines.index(one.machine)}"] = text.clean(fact.here, 200)
    standings = dict.fromkeys(fact.standing for _, fact in mine)
    row["compared"] = ", ".join(filter(None, (WORDS.get(one, "") for one in standings)))
    return row
