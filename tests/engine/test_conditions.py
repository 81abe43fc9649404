"""Conditions of the papers' runs: as the papers print them, and for every machine that has claims."""

from pathlib import Path

import pytest
import yaml

from engine.errors import UsageError
from engine.published.claims import ANY, figures
from engine.published.conditions import EVERY_RUN, FACTS, Conditions, conditions, conditions_of

PRINTED = {
    ("axonn-sc24", "Perlmutter"): {"torch": "1.13", "cuda": "11.7", "nccl": "2.15.5"},
    ("axonn-sc24", "Frontier"): {"torch": "2.2.1", "rocm": "5.7", "rccl": "2.18.6"},
    ("axonn-sc24", "Alps"): {"torch": "2.4.0", "cuda": "12.5.1", "nccl": "2.22.3"},
}
"""Versions of axonn-sc24 VI-B, the only ones that a paper prints."""


def test_versions_are_those_of_the_paper() -> None:
    names = ("torch", "cuda", "rocm", "nccl", "rccl", "driver", "clocks", "settings")
    found = {
        (one.paper, one.system): {name: said for name in names if (said := one.facts.get(name))} for one in conditions()
    }
    assert {place: versions for place, versions in found.items() if versions} == PRINTED


def test_every_machine_of_a_claim_has_its_conditions() -> None:
    machines = {(claim.paper, claim.system) for one in figures() for claim in one.claims if claim.system != ANY}
    assert machines == {(one.paper, one.system) for one in conditions()}
    assert conditions_of("par4d", "Alps") is None


def test_facts_stand_in_order_with_what_every_run_has() -> None:
    for one in conditions():
        assert list(one.facts) == [name for name in FACTS if name in one.facts]
        assert set(one.facts) >= EVERY_RUN
    assert set(FACTS) == set(Conditions.model_fields) - {"paper", "system", "where"}


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([{"system": "Alps", "where": "Table 1", "tourch": "2"}], "tourch"),
        ([{"system": "Alps", "where": "somewhere"}], "where"),
        ([{"system": "Alps", "where": "Table 1", "torch": 1.13}], "torch"),
        (2 * [{"system": "Alps", "where": "Table 1"}], "twice"),
        (["Alps"], "list"),
        ({"system": "Alps"}, "list"),
    ],
)
def test_a_faulty_file_is_refused_by_name(entries: object, named: str, tmp_path: Path) -> None:
    """Planted: a misspelt fact, a version that YAML takes for a number, a machine twice."""
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(entries))
    with pytest.raises(UsageError, match=named) as refused:
        conditions(tmp_path)
    assert "\n" not in str(refused.value)
