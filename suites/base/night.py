"""A night asks whether last night's update slowed this machine down, and what of it.

reframe -c suites -R --system frontier -t nightly -l    # the tests of a night, and what they can cost

On every system they take at most 4 nodes, 2 node-hours, and 30 minutes one after the other.
"""

NIGHTLY = "nightly"
"""A night's tests have this tag."""


class Worth:
    """How much a night loses without a test of that kind; the least goes first. ReFrame copies no enum."""

    NOTHING = 0
    LAUNCHES = 1
    MEMORY = 2
    PEERS = 3
    OVERLAPS = 4
    PRODUCTS = 5
    LINKS = 6
    CORRECTNESS = 7
    TRAINING = 8
