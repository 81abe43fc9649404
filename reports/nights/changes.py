"""Between two nights something of the machine may have changed."""

from collections.abc import Mapping, Sequence

from reports.nights.history import NODES


def what_changed(before: Sequence[Mapping[str, str]], since: Sequence[Mapping[str, str]]) -> list[str]:
    """Say how the state of jobs differs from that of jobs before: torch 2.9 -> 2.10. What had varied before is no
    change. Of nodes, which a queue draws anew every night, only those count that all jobs since then have had.
    """
    words = []
    nodes = [{*state.get(NODES, "").split(", ")} for state in since]
    known = {node for state in before for node in state.get(NODES, "").split(", ")}
    if before and since and (ours := sorted(set[str].intersection(*nodes) - known - {""})):
        words.append(f"{NODES}: {', '.join(ours)} {'was' if len(ours) == 1 else 'were'} not among them before")
    for name in dict.fromkeys(name for state in [*before, *since] for name in state if name != NODES):
        old = {state.get(name, "") for state in before}
        new = {state.get(name, "") for state in since}
        if old and new and not old & new:
            words.append(f"{name} {' or '.join(sorted(old)) or 'unset'} -> {' or '.join(sorted(new)) or 'unset'}")
    return words
