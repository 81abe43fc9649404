"""Published numbers are read by one door, each with its place in a paper, and a faulty file is refused by name."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.published import numbers, select
from engine.validation.held_out import published_series

BLOCK = {
    "where": "Table IV",
    "system": "Frontier",
    "metrics": {"hfu": "%", "time_s": {"unit": "s", "origin": "implied"}},
    "rows": [{"model": "gpt-5b", "devices": 512, "hfu": [40, 41.5], "time_s": 17}],
}


def written(folder: Path, *blocks: object) -> Path:
    (folder / "a-paper.yaml").write_text(yaml.safe_dump(list(blocks)))
    return folder


def test_a_row_of_a_file_is_a_number_of_each_metric(tmp_path: Path) -> None:
    share, time = numbers(written(tmp_path, BLOCK))
    assert (share.paper, share.source, share.text) == ("a-paper", "a-paper Table IV", "40 to 41.5 %")
    assert (share.si, share.highest_si) == pytest.approx((0.4, 0.415))
    assert (time.source, time.si, time.devices, time.system) == ("a-paper Table IV, implied", 17, 512, "Frontier")
    assert share.tolerance == time.tolerance == 0.2


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"where": ""}, "where"),
        ({"metrics": {"hfu": "parsec"}}, "unit"),
        ({"sytsem": "Alps"}, "sytsem"),
        ({"tolerance": 1.5}, "tolerance"),
        ({"rows": [{"model": "gpt-5b"}]}, "hfu"),
        ({"rows": [{"hfu": "much"}]}, "value"),
        ({"rows": None}, "rows"),
        ({"study": "weak_scaling", "rows": [{"hfu": 40}, {"hfu": 41, "origin": "picture"}]}, "40 %.*41 %"),
    ],
)
def test_a_faulty_file_is_refused_by_its_name_and_key(fault: dict[str, object], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"a-paper\.yaml.*{named}"):
        numbers(written(tmp_path, {**BLOCK, **fault}))


def test_every_number_is_told_from_all_others() -> None:
    every = numbers()
    papers = {"axonn-ipdps22", "axonn-sc24", "colossal-ai", "par4d"}
    assert {one.paper for one in every} == papers | {"llm-foundry", "torchtitan"}
    named = Counter(one.model_copy(update={"value": 0.0, "note": ""}) for one in every)
    assert [one for one, count in named.items() if count > 1] == []
    with pytest.raises(ValueError, match="papers"):
        select(papers="par4d")


def test_the_networks_of_the_papers_are_those_of_the_catalogue() -> None:
    """Tables of GPTs: layers, hidden size and heads."""
    tables = [*select(where="Table I"), *select(where="Table II", paper="axonn-sc24")]
    found = 0
    for one in tables:
        if one.metric in ("layers", "hidden", "heads") and one.model.startswith("GPT"):
            assert getattr(lookup(one.model.lower()), one.metric) == one.value, one
            found += 1
    assert found == 3 * (5 + 4 + 9)


def test_validation_s_series_are_the_implied_times_of_our_own_systems() -> None:
    every = [(one.source.split(":")[0], one.system, sum(map(len, one.batch_s.values()))) for one in published_series()]
    assert every == [
        ("axonn-sc24 Table III", "frontier", 7),
        ("axonn-sc24 Table III", "perlmutter", 4),
        ("axonn-sc24 Table III", "alps", 4),
        ("par4d Table III", "perlmutter", 5),
    ]
