"""ci/cluster and its system where there is no cluster: bad use, what it is by default, what a scheduler says."""

import os

import pytest
from cluster_command import CLUSTER, message, run

import systems
from suites.base.engine_test import scheduler_says
from virtual_cluster.command import parse


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "required: up|link|status|down"),
        (["upp"], "invalid choice: 'upp'"),
        (["up", "--noodles", "4"], "unrecognized arguments: --noodles 4"),
        (["up", "--nodes", "0"], "--nodes: it goes from 1 to 64, but '0' was given"),
        (["up", "--nodes", "65"], "--nodes: it goes from 1 to 64, but '65' was given"),
        (["up", "--ranks-per-node", "two"], "--ranks-per-node: it goes from 1 to 64, but 'two' was given"),
    ],
)
def test_bad_use_is_told_in_one_sentence(words: list[str], expected: str) -> None:
    done = run(CLUSTER, *words)
    assert done.returncode == 2
    assert expected in message(done)


def test_without_root_it_says_that_it_takes_root() -> None:
    another = ["unshare", "--user"] if os.geteuid() == 0 else []
    done = run(*another, CLUSTER, "up")
    if done.stderr.startswith("unshare:"):
        pytest.skip("no other user can be had here")
    assert done.returncode == 1
    assert "takes root" in message(done)


def test_the_system_file_says_what_the_cluster_is_by_default() -> None:
    made = parse(["up"])
    node = systems.load("vcluster").node
    assert node.devices is not None
    assert node.nic_bytes_per_s is not None
    assert (node.devices.value, made.link) == (made.ranks_per_node, "1gbit")
    assert node.nic_bytes_per_s.value == pytest.approx(1e9 / 8)


def test_no_machine_takes_itself_for_the_cluster() -> None:
    assert not systems.load("vcluster").is_here()


@pytest.mark.parametrize(
    ("state", "stderr", "expected"),
    [
        (
            "TIMEOUT",
            "srun: Job step aborted: Waiting up to 7 seconds.\nRank 2 was told to end by SIGTERM.\n"
            "slurmstepd-n0: error: *** STEP 17.0 ON n0 CANCELLED AT 2026-11-21T03:34:30 DUE TO TIME LIMIT ***\n",
            "STEP 17.0 ON n0 CANCELLED AT 2026-11-21T03:34:30 DUE TO TIME LIMIT",
        ),
        (
            "FAILED",
            "srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure\n",
            "Task launch for StepId=1.0 failed on node n2: Communication connection failure",
        ),
        (
            "NODE_FAIL",
            "slurmstepd-n0: error: *** JOB 1 ON n0 CANCELLED AT 2026-11-21T03:51:43 DUE TO NODE FAILURE ***\n"
            "srun: error: Node failure on n2\n",
            "Node failure on n2",
        ),
        ("NODE_FAIL", "", "NODE_FAIL"),
        ("CANCELLED", "", "CANCELLED"),
        ("FAILED", "A grid of 9 ranks.\nsrun: error: n0: task 0: Exited with exit code 2\n", None),
        ("COMPLETED", "", None),
    ],
)
def test_the_reason_names_what_the_scheduler_did_and_only_that(state: str, stderr: str, expected: str | None) -> None:
    assert scheduler_says(state, stderr) == expected
