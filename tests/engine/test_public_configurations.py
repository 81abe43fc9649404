"""config.json files as people publish them: options that change nothing refuse none, those that do are refused by name.

Each is cut to a small width; of the kinds that take long to draw the sizes alone are read.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pretrained_folders import CONFIGURATIONS

from engine.errors import UsageError
from engine.models.adapters.folder import read_network

EVERY: dict[str, dict[str, Any]] = CONFIGURATIONS["usual"]
PUBLIC: dict[str, dict[str, Any]] = {
    **{
        name: {key: value for key, value in EVERY[row["base"]].items() if key not in row.get("without", ())}
        | row["changed"]
        for name, row in CONFIGURATIONS["public"].items()
    },
    **{f"all of {name}": config | CONFIGURATIONS["written_by_4"] for name, config in EVERY.items()},
}


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_options_that_change_nothing_refuse_no_file(name: str, tmp_path: Path) -> None:
    """And the network is that of the same file without them."""
    config = PUBLIC[name]
    plain = next(usual for usual in EVERY.values() if usual["model_type"] == config["model_type"])
    known = {*plain, "rope_theta", "rope_parameters", "rope_scaling", "n_inner", "pad_token_id", "num_key_value_heads"}
    known |= {"num_labels"} if "id2label" not in config else set()
    kept = {key: value for key, value in config.items() if key in known} | {"architectures": plain["architectures"]}
    _, found = read_network(folder_of(config, tmp_path))
    _, same = read_network(folder_of(kept, tmp_path))
    assert found.options == same.options


@pytest.mark.parametrize("row", CONFIGURATIONS["refused"], ids=lambda row: row["said"])
def test_an_option_that_changes_the_computation_is_refused_by_its_name(row: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(row["said"])) as refused:
        read_network(folder_of(EVERY[row["base"]] | row["changed"], tmp_path))
    assert len(str(refused.value)) < 400 + len(str(tmp_path))


def test_labels_are_counted_where_they_have_no_names(tmp_path: Path) -> None:
    _, network = read_network(folder_of(PUBLIC["vit of labels counted"], tmp_path))
    assert network.outputs == 3
