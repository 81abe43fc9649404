"""ci/cluster: bad use, and the real one, with its Slurm and its links, which takes root on Linux."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from running import QUICK, ROOT, project, reframe, succeed
from waiting import LONG_S, until

import systems
from reports.read.history import history
from suites.base.engine_test import scheduler_says
from virtual_cluster.command import parse

CLUSTER = ROOT / "ci" / "cluster"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False
    )


def message(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on standard error."""
    (line,) = done.stderr.splitlines()
    assert line.startswith("cluster: ")
    assert line.endswith(".")
    return line


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


STATE = Path("/run/par4d-cluster")
CONFIGURATION = Path("/etc/slurm/slurm.conf")
ONE_EACH = [
    "-S",
    "Validation.grid=2x1x2x1",
    "-S",
    "ranks_per_node=1",
    "-S",
    "iterations=3",
    "-S",
    "time_limit=1h",  # which a queue needs, and a slow machine might exceed
    *QUICK,
]

ENDLESS = """
    import reframe as rfm
    from suites.base.training import TrainingTest

    @rfm.simple_test
    class Endless(TrainingTest):
        study, model, sequences, precision = "endless", "gpt-test", 16, "fp32"
        num_tasks, grid, iterations, warmup = 8, "2x2x2x1", 1000000, 1
        time_limit = "1h"
"""

# Rank 0 receives 20 MB of each other rank, then sends each as much, and prints how long the two took and how the bytes
# that its node counts on each interface grew.
EXCHANGE = """
    import json, os, socket, time
    rank, size, data = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]), bytes(20_000_000)

    def read(peer, count):
        while count:
            count -= len(peer.recv(min(count, 1 << 20)))

    def count(interface, ways=("rx_bytes", "tx_bytes")):
        return sum(int(open(f"/sys/class/net/{interface}/statistics/{way}").read()) for way in ways)

    if rank:
        deadline = time.monotonic() + 1800
        while True:
            try:
                server = socket.create_connection(("n0", 5000), 1800)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        read(server, 1)
        server.sendall(data)
        read(server, len(data))
        server.sendall(b"!")
        read(server, 1)
        server.sendall(data[:400_000])
        raise SystemExit
    listening = socket.create_server(("", 5000))
    listening.settimeout(1800)
    peers = [listening.accept()[0] for _ in range(size - 1)]
    before = {name: count(name) for name in ("lo", "eth0")}
    begin = time.monotonic()
    for peer in peers:
        peer.sendall(b"!")
    for peer in peers:
        read(peer, len(data))
    middle = time.monotonic()
    for peer in peers:
        peer.sendall(data)
    for peer in peers:
        read(peer, 1)
    end = time.monotonic()
    grown = {name: count(name) - before[name] for name in before}
    short_s = []
    for peer in peers:
        asked = time.monotonic()
        peer.sendall(b"!")
        read(peer, 400_000)
        short_s.append(time.monotonic() - asked)
    print(json.dumps({"in_s": middle - begin, "out_s": end - middle, "short_s": short_s[0], **grown}))
"""


LOADED = """import socket
import torch
print("loaded", socket.gethostname(), torch.__file__, __file__, flush=True)
"""
PACKAGES = Path(torch.__file__).parents[1]


def packable(folder: Path) -> Path:
    """A copy of the project whose ranks say what they have loaded from where, with an environment to be packed.

    Its files are links to those of ours, but for what torch begins with, so that it is packed and copied in no time.
    """
    root = project(folder)
    shutil.copytree(ROOT / "ci", root / "ci")
    (root / "ci" / "setup").write_text("")
    main = root / "engine" / "__main__.py"
    main.write_text(LOADED + main.read_text())
    packages = root / ".venv" / "lib" / PACKAGES.parent.name / "site-packages"
    (packages / "torch").mkdir(parents=True)
    for file in (*PACKAGES.iterdir(), *(PACKAGES / "torch").iterdir()):
        link = packages / file.relative_to(PACKAGES)
        if not link.exists():
            link.symlink_to(file)
    (packages / "torch" / "__init__.py").unlink()
    shutil.copy(PACKAGES / "torch" / "__init__.py", packages / "torch")
    (root / ".venv-peers" / "litgpt" / "lib").mkdir(parents=True)
    (root / ".venv-peers" / "litgpt" / "lib" / "module.py").touch()
    python = Path(sys.executable).resolve()
    (root / ".venv" / "bin").mkdir()
    (root / ".venv" / "bin" / "python").symlink_to(python)
    (root / ".venv" / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    return root


@dataclass(frozen=True, slots=True)
class Machine:
    """Traces that a cluster could leave: links, network namespaces in use, its and Slurm's processes, and files."""

    links: frozenset[str]
    networks: frozenset[str]
    processes: frozenset[str]
    files: frozenset[Path]

    @classmethod
    def now(cls) -> "Machine":
        networks, processes = set(), set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                networks.add(str((process / "ns" / "net").readlink()))
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # it ended meanwhile
            if re.search(r"virtual_cluster inside|^slurm|^munged", words):
                processes.add(words)
        files = {file for file in (STATE, CONFIGURATION, Path("/run/mount")) if file.exists() or file.is_symlink()}
        links = frozenset(link.name for link in Path("/sys/class/net").iterdir())
        return cls(links, frozenset(networks), frozenset(processes), frozenset(files))


def why_not() -> str | None:
    """Why there can be no cluster here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a virtual cluster takes root on Linux"
    if not shutil.which("apt-get") and not shutil.which("slurmctld"):
        return "Slurm isn't installed, and there is no apt-get to install it with"
    if run("unshare", "--net", "--mount", "--pid", "--fork", "true").returncode:
        return "root may not make namespaces here"
    if STATE.exists():
        return f"a cluster is up already ({STATE}), and its user may be measuring on it"
    if CONFIGURATION.exists():
        return f"this machine has a Slurm of its own ({CONFIGURATION})"
    return None


@pytest.fixture(scope="module")
def before() -> Iterator[Machine]:
    """A cluster, as `ci/cluster up` makes it; the value is what the machine was before."""
    if reason := why_not():
        pytest.skip(reason)
    was = Machine.now()
    made = run(CLUSTER, "up")
    assert made.returncode == 0, made.stderr
    yield was
    run(CLUSTER, "down")


def exchange(folder: Path, *options: str) -> dict[str, float]:
    script = folder / "exchange.py"
    script.write_text(textwrap.dedent(EXCHANGE))
    done = run("srun", *options, sys.executable, script)
    assert done.returncode == 0, done.stderr
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def sent() -> dict[str, int]:
    """The bytes that each node has sent over its link."""
    done = run("srun", "-N4", "-n4", "-l", "cat", "/sys/class/net/eth0/statistics/tx_bytes")
    return {f"n{rank}": int(count) for rank, count in (line.split(":") for line in done.stdout.splitlines())}


def test_up_again_says_that_it_is_up_and_refuses_another_shape(before: Machine) -> None:
    again, status, other = run(CLUSTER, "up"), run(CLUSTER, "status"), run(CLUSTER, "up", "--nodes", "3")
    assert again.returncode == 0
    assert re.search(r"4 nodes.*\b2 ranks.*\b1gbit", message(again))
    assert status.returncode == 0
    assert status.stdout.splitlines()[1:] == ["n0 idle", "n1 idle", "n2 idle", "n3 idle"]
    assert other.returncode == 1
    assert "another cluster" in message(other)


@pytest.mark.parametrize(
    ("link", "expected"),
    [("fast", "tc refuses"), ("1gbit fast", "tc refuses"), ("10kbit", "from 1mbit"), ("200gbit", "100gbit")],
)
def test_a_link_rate_that_cant_be_had_is_refused_before_anything_is_built(
    before: Machine, link: str, expected: str
) -> None:
    done = run(CLUSTER, "up", "--link", link)
    assert done.returncode == 2
    assert expected in message(done)
    assert repr(link) in message(done)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        ("ip link add par4d type bridge", "a network link par4d is there that is not the cluster's"),
        ("ip link add other up type bridge && ip address add 198.18.77.9/25 dev other", "198.18.77.0/25 is on other"),
        ("touch /etc/slurm/slurm.conf", "a Slurm of its own"),
        ("export SLURM_CONF=/etc/theirs.conf", "SLURM_CONF=/etc/theirs.conf"),
        ("mount -n --bind /bin/false $(command -v nsenter)", "`nsenter --net="),
    ],
)
def test_what_is_taken_or_fails_is_told_and_nothing_stays(
    before: Machine, tmp_path: Path, prepare: str, expected: str
) -> None:
    """On a machine of its own: with a network, /run and /etc/slurm that are empty until they are prepared."""
    steps = f"""
        mount -n -t tmpfs tmpfs /run && mount -n -t tmpfs tmpfs /etc/slurm && mount -n -t sysfs sysfs /sys || exit 9
        {prepare}
        ls -A /run /etc/slurm /sys/class/net >"$1"
        {CLUSTER} up
        code=$?
        ls -A /run /etc/slurm /sys/class/net | diff "$1" - || exit 8
        exit $code
    """
    mine = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", steps, "sh"]
    done = run(*mine, tmp_path / "before")
    assert done.stdout == ""
    assert done.returncode == 1
    assert expected in message(done)


def test_each_direction_of_a_link_has_its_rate(before: Machine, tmp_path: Path) -> None:
    measured = exchange(tmp_path, "-N4", "-n4")
    least_s = 0.95 * 60e6 / 125e6
    assert measured["in_s"] > least_s  # each sender alone is within its rate: what n0 receives is limited
    assert measured["out_s"] > least_s
    assert measured["eth0"] > 120e6
    assert measured["short_s"] > 0.8 * 400e3 / 125e6, "a short message is no faster than the link"


def test_the_links_of_a_running_cluster_take_another_rate(before: Machine, tmp_path: Path) -> None:
    try:
        done = run(CLUSTER, "link", "500mbit")
        assert done.returncode == 0
        assert run(CLUSTER, "status").stdout.splitlines()[0].endswith("links of 500mbit")
        measured = exchange(tmp_path, "-N4", "-n4")
        assert measured["in_s"] > 0.95 * 60e6 / 62.5e6
        assert measured["out_s"] > 0.95 * 60e6 / 62.5e6
        assert "tc refuses" in message(run(CLUSTER, "link", "fast"))
        assert run(CLUSTER, "link", "400mbit", "n3").returncode == 0
        assert run(CLUSTER, "status").stdout.splitlines()[0].endswith("links of 500mbit, n3 of 400mbit")
        assert run(CLUSTER, "link", "400mbit", "n3", "n4").returncode == 2
    finally:
        assert run(CLUSTER, "link", "1gbit").returncode == 0


def test_ranks_of_one_node_talk_over_its_loopback(before: Machine, tmp_path: Path) -> None:
    measured = exchange(tmp_path, "-N1", "-n2", "-w", "n0")
    assert measured["lo"] > 40e6
    assert measured["eth0"] < 1e6


@pytest.mark.slow
def test_a_suite_runs_as_batch_jobs_spread_over_the_nodes_and_their_links(before: Machine, tmp_path: Path) -> None:
    counted = sent()
    done = reframe(tmp_path, "-c", "suites/validation.py", "-n", "^Validation", *ONE_EACH, "-S", "warmup=1", "-r",
                   "--system", "vcluster")  # fmt: skip
    assert done.code == 0, done.out
    (record,) = [case["record"] for case in done.cases() if case["name"].startswith("Validation")]
    assert record["provenance"]["hosts"] == ["n0", "n1", "n2", "n3"]
    assert record["provenance"]["launcher"] == "srun"
    assert all(count - counted[node] > 500_000 for node, count in sent().items())


@pytest.mark.slow
@pytest.mark.weekly
def test_a_series_may_take_one_rank_of_each_node_and_run_from_a_folder_there(before: Machine, tmp_path: Path) -> None:
    root = packable(tmp_path)
    one = ["-n", "two-nodes.*1x1x1x2", "-S", "rounds=1", "-S", "steps_per_round=1"]
    words = ["-c", "suites/overlap_ablation.py", "--system", "vcluster", "-r", "-S", "staged=yes", *one]
    packed = run(root / "ci" / "pack", "--peers")
    assert packed.returncode == 0, packed.stderr
    assert ".venv-peers/litgpt/lib/module.py" in run("tar", "-tf", root / ".packed.tar").stdout.splitlines()
    done = succeed(tmp_path / "run", *words, root=root)
    (case,) = done.cases()
    assert case["record"]["provenance"]["hosts"] == ["n0", "n1"]
    assert [side["name"] for side in case["record"]["contest"]["sides"]] == ["none", "data"]
    (said,) = (tmp_path / "run").glob("output/**/rfm_job.out")
    loaded = [line.split()[1:] for line in said.read_text().splitlines() if line.startswith("loaded")]
    own = f"{STATE}/local/par4d-{case['record']['provenance']['environment']['SLURM_JOB_ID']}"
    there = [f"{own}/.venv/lib/{PACKAGES.parent.name}/site-packages/torch/__init__.py", f"{own}/engine/__main__.py"]
    assert sorted(loaded) == [["n0", *there], ["n1", *there]]
    assert run("srun", "-N2", "-w", "n0,n1", "ls", "-A", STATE / "local").stdout == ""


@pytest.mark.slow
@pytest.mark.weekly
def test_cron_runs_a_night_by_the_line_of_its_example_and_mails_what_is_not_fine(
    before: Machine, tmp_path: Path
) -> None:
    """The line itself, in the environment that cron gives, for one short test in a folder of its own."""
    example = (ROOT / "ci" / "schedules" / "crontab").read_text().splitlines()
    given = dict(line.split("=", 1) for line in example if re.match(r"[A-Z0-9_]+=", line))
    (line,) = [line for line in example if line[:1].isdigit() and "ci/weekly" not in line]
    command = tmp_path / "ci" / "nightly"
    command.parent.mkdir()
    others = "WeakScaling|Validation|Bandwidth|Peak|Overlap|Baseline"
    command.write_text(f'#!/bin/sh\nexec {ROOT}/ci/nightly "$@" --dir {tmp_path} --jobs 1 -- --exclude "{others}"\n')
    command.chmod(0o755)
    usual = {"HOME": str(tmp_path), "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", "-c", line.split(maxsplit=5)[5]],
        env=usual | given | {"PAR4D": str(tmp_path), "SYSTEM": "vcluster"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert "vcluster, night 20" in done.stdout, done
    assert "nothing could be judged" in done.stdout  # there are no references
    told = (tmp_path / "results" / "nights" / "vcluster" / "latest.md").read_text()
    assert set(re.findall(r"^\| \w+ +\| (\w+)", told, re.MULTILINE)) - {"Test"} == {"LaunchLatency"}
    (job,) = history(tmp_path / "results" / "reframe" / "results.db", "vcluster").jobs
    assert set(job.state["nodes"].split(", ")) <= {"n0", "n1", "n2", "n3"}


@pytest.mark.slow
def test_a_node_that_is_lost_fails_the_suite_with_the_reason(before: Machine, tmp_path: Path) -> None:
    suite = tmp_path / "endless.py"
    suite.write_text(textwrap.dedent(ENDLESS))
    words = ["-c", str(suite), "--system", "vcluster", "-r"]
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(reframe, tmp_path / "lost", *words)
        until(lambda: Path(sys.executable).name in commands_on("n2"), 0.2)  # before that, srun may fail to launch there
        lose("n2")
        done = lost.result()
    assert done.code == 1
    # Ranks that other work holds up are killed before they have written what they know.
    ended = re.search(r"ended the job:(.*?); the\b(.*)", done.out)
    assert ended
    assert re.search("failure on n2|NODE FAILURE", ended[1])
    assert re.match(" (run failed|engine wrote no)", ended[2])
    status, again = run(CLUSTER, "status"), run(CLUSTER, "up")
    assert (status.returncode, message(status)) == (1, "cluster: n2 is down*.")
    assert again.returncode == 1
    assert "n2 is down*" in message(again)
    after = reframe(tmp_path / "after", *words)
    assert after.code == 1
    assert re.search("job cancelled .*DOWN", after.out)


def first_process(node: str) -> int:
    return json.loads((STATE / "state.json").read_text())["processes"][node][0]


def commands_on(node: str) -> Iterator[str]:
    """Return the name of each process on a node."""
    space = Path(f"/proc/{first_process(node)}/ns/pid").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if (process / "ns" / "pid").readlink() == space:
                yield (process / "comm").read_text().strip()


def lose(node: str) -> None:
    """Its slurmd dies and all else stops there, so that the ranks of other nodes wait, and don't compute meanwhile."""
    number = (STATE / f"slurmd-{node}.pid").read_text().strip()
    for words in (["-KILL", number], ["-STOP", "--", "-1"]):
        assert run("nsenter", "--target", str(first_process(node)), "--pid", "--mount", "kill", *words).returncode == 0


def test_down_ends_what_runs_and_leaves_nothing_behind(before: Machine) -> None:
    run("sbatch", "-N1", "-o", "/dev/null", "--wrap", "sleep 10000")
    until(lambda: run("squeue", "--noheader", "--states=RUNNING").stdout, 0.2)
    assert Machine.now() != before
    assert run(CLUSTER, "down").returncode == 0
    until(lambda: Machine.now() == before, 0.1)  # the parents of the nodes' first processes need a moment
    again = run(CLUSTER, "down")
    assert again.returncode == 0
    assert "no cluster" in message(again)


def test_between_pairs_links_are_slower_and_within_one_nothing_passes_them(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)

    def between() -> int:
        """The bytes that have passed the first pair's link to the others."""
        shown = run("nsenter", f"--net=/proc/{first_process('head')}/ns/net", "ip", "-s", "-json", "link", "show")
        (link,) = (link for link in json.loads(shown.stdout) if link["ifname"] == "pair0above")
        return int(link["stats64"]["rx"]["bytes"] + link["stats64"]["tx"]["bytes"])

    try:
        assert run(CLUSTER, "up", "--slow-pairs", "--ranks-per-node", "1").returncode == 0
        assert run(CLUSTER, "up", "--ranks-per-node", "1").returncode == 1
        first = between()
        near = exchange(tmp_path, "-N2", "-n2", "-w", "n0,n1")
        second = between()
        far = exchange(tmp_path, "-N2", "-n2", "-w", "n0,n2")
        assert near["eth0"] > 40e6
        assert second - first < 1e6
        assert between() - second > 40e6
        assert min(far["in_s"], far["out_s"]) > 0.95 * 20e6 / (125e6 * 15 / 184)
    finally:
        assert run(CLUSTER, "down").returncode == 0
