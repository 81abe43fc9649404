"""How the minutes are divided among the checks, so that none takes what those after it need. No torch.

Checks come in the order of what they tell. least_s of each is what it takes on a GPU, as far as that is known without
one; all together fit into the minutes that there are by default. A check that takes longer has what those after it
leave over, LATE times its own seconds at most. Where there are fewer minutes, the last ones are left out. Time that is
left in the end goes to those that were ended for the sake of others, then to what is undecided.
"""

MINUTES = 9.0
RESERVE_S = 10.0
"""Of the time there is, for what lies between and after the processes."""
LOOK_S, MOST_LOOK_S = 20.0, 90.0
"""To see what the machine has: what it takes, and after how long it is ended."""
LATE = {"cuda": 3.0, "cpu": 10.0}
"""How many times its own seconds a check may take; processors rehearse, and may be busy with something else."""
PATIENCE = 1.25
"""A check isn't begun once more with less time left than so many times what it took before."""


def limit_s(left_s: float, least_s: float, later_s: float, late: float) -> float | None:
    """Seconds after which a check is ended; None if it isn't begun at all. later_s: least_s of all after it."""
    if left_s < least_s:
        return None
    return min(late * least_s, max(least_s, left_s - later_s))
