"""A result over another network than its system's is no result of that system, and says so in words."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import project, reframe

import systems
from suites.base.engine_test import mismatch

FRONTIER = systems.load("frontier").partitions[0]
WANTED = "AWS Libfabric or Libfabric or OFI"

# Runs the engine, and says that another node took part.
WRAPPER = """#!{python}
import json, pathlib, subprocess, sys
code = subprocess.call([{python!r}, *sys.argv[1:]])
file = pathlib.Path("result.json")
result = json.loads(file.read_text())
result["provenance"]["hosts"].append("elsewhere")
file.write_text(json.dumps(result))
sys.exit(code)
"""


def record(*networks: tuple[str | None, int], hosts: int = 2) -> dict[str, Any]:
    """As a result.json has it."""
    said = [
        {"name": name, "ranks": ranks, "host": f"nid{at}", "unread": None if name else "the log names none"}
        for at, (name, ranks) in enumerate(networks)
    ]
    return {"provenance": {"hosts": [f"nid{at}" for at in range(hosts)]}, "transport": {"networks": said}}


def over(provider: str | None) -> dict[str, Any]:
    """Libfabric over that provider."""
    told = record(("AWS Libfabric", 16))
    told["transport"]["networks"][0]["provider"] = provider
    return told


GOOD = [
    *(record((name, 16)) for name in ("AWS Libfabric", "Libfabric", "OFI")),
    *(over("cxi"), over(None)),
    *(record(("Socket", 8), hosts=1), record(hosts=1) | {"transport": None}),
]


@pytest.mark.parametrize("told", GOOD)
def test_the_expected_network_is_good_and_one_node_needs_none(told: dict[str, Any]) -> None:
    assert mismatch("frontier", FRONTIER, told) is None


@pytest.mark.parametrize("name", ["local", "vcluster", "summit"])
def test_where_nothing_is_expected_anything_is_good(name: str) -> None:
    assert mismatch(name, systems.load(name).partitions[0], record(("tcp", 8))) is None


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (over("tcp"), "AWS Libfabric over libfabric's tcp on 16 ranks .*nid0.* cxi: load"),
        (record(("Socket", 16)), f"Socket on 16 ranks .*nid0.* {WANTED}: load .*rccl-net-plugin"),
        (record(("OFI", 15), ("Socket", 1)), f"Socket on 1 rank .*nid1.* {WANTED}: load"),
        (record(("AWS Libfabric and Socket", 16)), "AWS Libfabric and Socket on 16 ranks"),
        (record(("OFI", 8), (None, 8)), f"8 ranks .*nid1.*the log names none; .*{WANTED}"),
        (record() | {"transport": None}, f"{WANTED}: run it again"),
    ],
)
def test_another_network_or_none_that_is_known_is_told_with_what_to_do(told: dict[str, Any], said: str) -> None:
    wrong = mismatch("frontier", FRONTIER, told)
    assert wrong is not None
    assert re.search(said, wrong)


def test_a_test_fails_by_it(tmp_path: Path) -> None:
    root = project(tmp_path)
    file = root / "systems" / "local.yaml"
    local = yaml.safe_load(file.read_text())
    local["partitions"][0]["transport"] = {
        "networks": {"value": ["Slingshot"], "source": "this test"},
        "nccl_net": "AWS Libfabric",
        "env_vars": {"value": {"NCCL_CROSS_NIC": "a b"}, "source": "this test"},
        "remedy": "plug it in",
    }
    file.write_text(yaml.safe_dump(local))
    wrapper = tmp_path / "python"
    wrapper.write_text(WRAPPER.format(python=sys.executable))
    wrapper.chmod(0o755)
    both = ["-n", "(Peak%ranks=1%dtype=fp32|LaunchLatency%ranks=1)$", "-S", "time_budget_s=1", "-r"]
    words = ["-c", "suites/peak.py", "--system", "local", *both, "-S", f"LaunchLatency.python={wrapper}"]
    done = reframe(tmp_path / "run", *words, root=root)
    assert done.code == 1
    assert {case["name"].split()[0]: case["result"] for case in done.cases()} == {
        "Peak": "pass",
        "LaunchLatency": "fail",
    }, "on one node alone there is no network to be wrong"
    assert "local expects Slingshot" in done.out
    (text,) = done.jobs("bench latency")
    assert "export NCCL_CROSS_NIC='a b'" in text
    assert "export NCCL_NET='AWS Libfabric'" in text
    assert "unset NCCL_DEBUG " in text
