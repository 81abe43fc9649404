"""Network between ranks: read from logs that NCCL and RCCL really wrote, from every rank, and told in the result."""

import ctypes
import os
from pathlib import Path

import pytest
import yaml
from real_ranks import run_processes

from engine.comm.agreement import gather_texts
from engine.comm.funnel import Comm
from engine.comm.transport import NetworkLog, listen, parse
from engine.grid import Grid
from engine.result.schema.machine import Interconnect
from engine.training.gathered import NETWORK_BYTES, everyones, grouped

SOURCES = yaml.safe_load(Path(__file__).with_name("nccl_logs.yaml").read_text())
LOGS: dict[str, str] = {name: source["log"] for name, source in SOURCES.items()}
SOCKET = NetworkLog(network="Socket")


@pytest.mark.parametrize(
    ("log", "heard"),
    [
        (
            LOGS["PERLMUTTER_WITH_PLUGIN"],
            NetworkLog("AWS Libfabric", None, "cxi", True, "aws-ofi-nccl 1.6.0", "NCCL 2.23.4+cuda12.4"),
        ),
        (LOGS["PERLMUTTER_THROUGH_THE_HOST"], NetworkLog("AWS Libfabric", None, "cxi", False)),
        (LOGS["PERLMUTTER_WITHOUT_PLUGIN"], NetworkLog(library="NCCL 2.25.1+cuda12.8", unread="the log names none")),
        (LOGS["NCCL_2_28_WITHOUT_PLUGIN"], NetworkLog("Socket", "enp129s0f0", library="NCCL 2.28.9+cuda13.0")),
        (LOGS["ALPS_PLUGIN_NOT_FOUND"], NetworkLog(unread="the log names none")),
        (LOGS["ALPS_WITH_PLUGIN"], NetworkLog("AWS Libfabric")),
        (
            LOGS["EFA"],
            NetworkLog("AWS Libfabric", None, "efa", plugin="aws-ofi-nccl 1.3.0aws", library="NCCL 2.10.3+cuda11.3"),
        ),
        (LOGS["ROCE"], NetworkLog("IB", library="NCCL 2.18.5+cuda12.0")),
        (LOGS["TWO_INTERFACES"], NetworkLog("Socket", "ibs85f0,ib0")),
        (LOGS["OLD_NCCL"], NetworkLog("Socket", "lo", library="NCCL 2.4.8+cuda10.1")),
        (LOGS["RCCL"], NetworkLog("Socket", "eno2np1", library="RCCL 2.21.5-HEAD:9a0e6a1")),
        (LOGS["RCCL_ON_SLINGSHOT_CHANNELS"], NetworkLog("Socket", gpu_direct=False)),
        ("", NetworkLog(unread="the log names none")),
    ],
)
def test_a_log_tells_the_network_and_what_else_it_names(log: str, heard: NetworkLog) -> None:
    assert parse(log) == heard
    assert parse(log.replace("\n", "\r\n")) == heard


def test_communicators_that_took_different_networks_are_all_named() -> None:
    assert parse(LOGS["ALPS_WITH_PLUGIN"] + LOGS["TWO_INTERFACES"]).network == "AWS Libfabric and Socket"


def test_what_is_heard_travels_as_a_text_that_a_row_holds() -> None:
    long = "x" * 500
    log = f"NET/OFI Selected provider is {long}\nNET/OFI Using aws-ofi-nccl {long}\nNCCL version 2.{'1' * 500}\n"
    log += f"NET/Socket : Using {' '.join(f'[{n}]eth{n}:10.0.0.1<0>' for n in range(50))}\nUsing network Socket\n"
    heard = parse(log)
    assert heard.network == "Socket"
    assert len(heard.to_text().encode()) < NETWORK_BYTES
    assert NetworkLog.from_text(heard.to_text()) == heard


@pytest.mark.parametrize("character", ["x", "é", '"', "\\", "\n", "\0", "\U0001f600"])
def test_however_long_a_field_is_the_text_can_be_read(character: str) -> None:
    long = character * 500
    heard = NetworkLog.from_text(NetworkLog(long, long, long, False, long, long, long).to_text()[:NETWORK_BYTES])
    assert heard.unread is not None
    assert len(heard.unread) == len(heard.network or "") == 80


@pytest.mark.parametrize("text", ["", '{"network": "Soc', "5", '{"what": 1}'])
def test_a_text_that_is_none_of_a_ranks_leaves_the_network_unknown(text: str) -> None:
    found = NetworkLog.from_text(text)
    assert found.unread
    assert found == NetworkLog(unread=found.unread)


def test_a_rank_is_gpu_direct_only_by_all_of_its_channels() -> None:
    both = LOGS["PERLMUTTER_WITH_PLUGIN"] + LOGS["PERLMUTTER_THROUGH_THE_HOST"]
    assert parse(both).gpu_direct is False


def _write_as_nccl_does(name: str, text: str) -> None:
    """Write by C's fopen, by the file's name, and line by line: it stays open until the process ends."""
    c = ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(c.fopen(name.encode(), b"w"))
    assert file.value
    c.setlinebuf(file)
    c.fputs(text.encode(), file)


def test_nccls_log_is_turned_on_and_read_from_a_file_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ: dict[str, str] = {}
    heard = listen("nccl", environ)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert environ["NCCL_DEBUG_SUBSYS"] == "INIT,NET"
    _write_as_nccl_does(environ["NCCL_DEBUG_FILE"], LOGS["TWO_INTERFACES"])
    assert heard() == NetworkLog("Socket", "ibs85f0,ib0")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_the_user_sends_to_a_file_is_read_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "nid01.site.org")
    asked = {"NCCL_DEBUG": "info", "NCCL_DEBUG_FILE": str(tmp_path / "%h-%p.log")}
    environ = dict(asked)
    heard = listen("nccl", environ)
    assert environ == asked, "what the user has set stays"
    assert f"nid01-{os.getpid()}.log" in (heard().unread or "")
    (tmp_path / f"nid01-{os.getpid()}.log").write_text(LOGS["ROCE"])
    assert heard().network == "IB"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"NCCL_DEBUG": "WARN"}, "NCCL_DEBUG=WARN keeps it from being named: unset NCCL_DEBUG"),
        ({"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": "log"}, "NCCL_DEBUG=VERSION keeps it from being named"),
        ({"NCCL_DEBUG": "INFO"}, "NCCL_DEBUG=INFO sends the log elsewhere: unset it, or set NCCL_DEBUG_FILE"),
    ],
)
def test_a_log_that_is_not_to_be_had_is_said(environ: dict[str, str], said: str) -> None:
    before = dict(environ)
    heard = listen("nccl", environ)()
    assert environ == before
    assert heard.network is None
    assert heard.unread is not None
    assert heard.unread.startswith(said)


def test_gloo_takes_tcp_over_the_interface_that_is_named_unless_told_otherwise() -> None:
    assert listen("gloo", {})() == NetworkLog("tcp")
    assert listen("gloo", {"GLOO_SOCKET_IFNAME": "eth0"})() == NetworkLog("tcp", "eth0")
    assert listen("gloo", {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"})() == NetworkLog("tcp_tls")


def test_ranks_that_say_the_same_stand_together_and_those_that_fell_back_apart() -> None:
    took = parse(LOGS["PERLMUTTER_WITH_PLUGIN"])
    told = grouped("nccl", [took, took, SOCKET, NetworkLog("AWS Libfabric", provider="cxi")], ["a", "a", "b", "b"])
    assert told.library == "NCCL 2.23.4+cuda12.4"
    assert told.plugin == "aws-ofi-nccl 1.6.0"
    first, second = told.networks
    assert first == Interconnect(name="AWS Libfabric", provider="cxi", ranks=3, gpu_direct_ranks=2, host="a")
    assert second == Interconnect(name="Socket", ranks=1, host="b")


def _fell_back_on_rank_2(comm: Comm) -> tuple:
    log = LOGS["TWO_INTERFACES"] if comm.rank == 2 else LOGS["PERLMUTTER_WITH_PLUGIN"]
    ranks = everyones(comm, lambda: parse(log))
    return ranks.transport, gather_texts(comm, f"rank {comm.rank} " + "é" * comm.rank)


def test_every_rank_is_asked_so_that_one_that_fell_back_is_seen() -> None:
    for told, said in run_processes(Grid(2, 1, 2, 1), _fell_back_on_rank_2):
        assert [(network.name, network.ranks) for network in told.networks] == [("AWS Libfabric", 3), ("Socket", 1)]
        assert said == ["rank 0 ", "rank 1 é", "rank 2 éé", "rank 3 ééé"]
