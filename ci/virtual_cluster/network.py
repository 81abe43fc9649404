"""The network: a bridge at the head, and a link of limited rate from it to each node.

With slow pairs each two nodes have a bridge of their own, and a slower link from it to the head's.
"""

import contextlib
import ipaddress
import json
import socket
import subprocess
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address

from virtual_cluster.machine import COMMAND_TIMEOUT_S, Misuse, Problem, last_line, run
from virtual_cluster.record import HEAD

NETWORK = ipaddress.IPv4Network("198.18.77.0/24")  # of the block that is set aside for testing networks (RFC 2544)
OUTSIDE, HEAD_ADDRESS = NETWORK[253], NETWORK[254]  # this machine's own address there, and slurmctld's
LINK = "par4d"  # the one network link that this machine itself gets
SLOWEST, FASTEST = 125_000, 12_500_000_000  # bytes/s
QUEUE = ("latency", "50ms")  # deep: a switch that drops makes TCP wait 0.2 s, which HPC's never do
PACKET = 72_000  # bytes, of the largest that a kernel hands on at once; what a link lets pass beyond its rate
TURN_S = 1e-4  # or so many seconds' worth, as no timer is more punctual
BETWEEN_PAIRS = 15 / 184  # of a link's rate: colossal-ai 5.2 and Fig. 10, System II, GB/s


def addresses(nodes: int) -> dict[str, IPv4Address]:
    return {f"n{number}": NETWORK[number + 1] for number in range(nodes)}


def rate(link: str) -> int:
    """Try a link in a network of its own; returns its bytes/s as tc and the kernel take it. Raises Misuse."""
    command = ["unshare", "--net", "tc", "-json", "-batch", "-"]
    lines = f"qdisc add dev lo root tbf rate {link} burst {PACKET} {' '.join(QUEUE)}\nqdisc show dev lo\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.stderr.startswith("unshare:"):
        raise Problem(f"root may not make namespaces here ({last_line(done.stderr)}): use a machine where it may.")
    if done.returncode:
        reason = done.stderr.strip().split("\n")[0]
        raise Misuse(f"tc refuses a link of {link!r} ({reason}): write it like 1gbit or 100mbit.")
    found = int(json.loads(done.stdout)[0]["options"]["rate"])
    if not SLOWEST <= found <= FASTEST:
        raise Misuse(f"a link goes from 1mbit to 100gbit, but {link!r} was given, which is {8 * found} bit/s.")
    return found


def refuse_what_is_taken() -> None:
    """Raise Problem if the link's name or the network's addresses belong to others."""
    if has_link():
        raise Problem(f"a network link {LINK} is there that is not the cluster's: rename it.")
    for route in json.loads(run("ip", "-4", "-json", "route", "show", "table", "all")):
        with contextlib.suppress(ValueError):  # "default" is no network
            if ipaddress.IPv4Network(route["dst"]).subnet_of(NETWORK):
                raise Problem(f"the cluster needs the network {NETWORK}, but {route['dst']} is on {route['dev']}.")


def join(pids: dict[str, int], nodes: dict[str, IPv4Address], bytes_per_s: int, *, slow_pairs: bool) -> None:
    """Link the nodes and this machine to the head, each given by its first process. Raises Problem."""
    head = pids[HEAD]
    _bridge(head, "bridge")
    for pair in _pairs(nodes) if slow_pairs else ():
        above, below = _ends(pair)
        _bridge(head, pair)
        at(head, "ip", "link", "add", above, "up", "type", "veth", "peer", "name", below)
        _limit("add", [(head, above), (head, below)], bytes_per_s * BETWEEN_PAIRS)
        at(head, "ip", "link", "set", above, "master", "bridge", "up")
        at(head, "ip", "link", "set", below, "master", pair, "up")
    at(head, "ip", "address", "add", f"{HEAD_ADDRESS}/24", "dev", "bridge")
    run("ip", "link", "add", LINK, "up", "type", "veth", "peer", "name", "outside", "netns", str(head))
    run("ip", "address", "add", f"{OUTSIDE}/24", "dev", LINK)
    at(head, "ip", "link", "set", "outside", "master", "bridge", "up")
    for number, (name, address) in enumerate(nodes.items()):
        at(head, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pids[name]))
        _limit("add", [(head, name), (pids[name], "eth0")], bytes_per_s)
        at(head, "ip", "link", "set", name, "master", _pair(number) if slow_pairs else "bridge", "up")
        at(pids[name], "ip", "address", "add", f"{address}/24", "dev", "eth0")
        at(pids[name], "ip", "link", "set", "eth0", "up")
    for pid in pids.values():
        at(pid, "ip", "link", "set", "lo", "up")


def change(pids: dict[str, int], nodes: Collection[str], bytes_per_s: int, *, between_pairs: bool) -> None:
    """Give the links of a running cluster another rate, and those between its pairs. Raises Problem."""
    head = pids[HEAD]
    for name in nodes:
        _limit("change", [(head, name), (pids[name], "eth0")], bytes_per_s)
    for pair in _pairs(nodes) if between_pairs else ():
        _limit("change", [(head, end) for end in _ends(pair)], bytes_per_s * BETWEEN_PAIRS)


def _bridge(head: int, name: str) -> None:
    at(head, "ip", "link", "add", name, "up", "type", "bridge", "forward_delay", "0")


def _pair(node: int) -> str:
    return f"pair{node // 2}"


def _pairs(nodes: Collection[str]) -> list[str]:
    return [_pair(node) for node in range(0, len(nodes), 2)]


def _ends(pair: str) -> tuple[str, str]:
    """Name the ends of a pair's link: at the bridge of all, and at its own."""
    return f"{pair}above", f"{pair}below"


def _limit(how: str, ends: Iterable[tuple[int, str]], bytes_per_s: float) -> None:
    """Limit what leaves both ends of a link, each in the network of a process."""
    burst = max(PACKET, round(TURN_S * bytes_per_s))
    for pid, end in ends:
        limit = ("rate", f"{round(bytes_per_s)}bps", "burst", str(burst), *QUEUE)
        at(pid, "tc", "qdisc", how, "dev", end, "root", "tbf", *limit)


def has_link() -> bool:
    return LINK in (name for _, name in socket.if_nameindex())


def remove_link() -> None:
    """Remove this machine's end; the others go with their namespaces."""
    with contextlib.suppress(Problem):  # it goes with the head, perhaps just now
        run("ip", "link", "delete", LINK)


def at(pid: int, *command: str) -> None:
    """Run a command in the network of a node, given by its first process."""
    run("nsenter", f"--net=/proc/{pid}/ns/net", *command)
