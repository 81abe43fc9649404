"""The minutes are divided among the checks: the most telling come first, and they run while there is time.

least_s of each is what one process of it takes on a GPU, as far as that is known without one. What is slower keeps its
time, up to late_s, and the last checks are left out for it. All but the last three fit into the minutes that there are
by default. Time that is left in the end goes to what is undecided. No torch.
"""

MINUTES = 10.0
RESERVE_S = 10.0
"""So much is kept for what lies between and after the processes."""
LOOK_S, MOST_LOOK_S = 20.0, 90.0
"""Looking at what the machine has takes so long, and is ended after so long."""
LATE = {"cuda": 3.0, "cpu": 30.0}
"""How many times its own seconds a check may take; processors rehearse, and may be busy with something else."""
LATE_S = 30.0
"""Time that it gets besides, for libraries that come from a file system over a network."""
COLD = 2.0
"""The first process of a check may take so many times as long where Inductor has compiled nothing yet."""
RANKS_WAIT = {"cuda": 1.0, "cpu": 6.0}
"""Ranks wait so many times as long for each other as they do on GPUs, which is less than a check may take."""
PATIENCE = 1.25
"""A check isn't begun once more with less time left than so many times what it took before."""


def late_s(least_s: float, device: str, *, cold: bool = False) -> float:
    """Return seconds after which a process counts as hung, or too slow. cold: whether it has to compile first."""
    return (COLD if cold else 1.0) * (LATE[device] * least_s + LATE_S)
