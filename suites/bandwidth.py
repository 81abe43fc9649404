"""How fast do ranks send to each other, within a node and between nodes? The bandwidth database of axonn-sc24 V-B.

    reframe -c suites/bandwidth.py --system perlmutter
    reframe -c suites/bandwidth.py --system vcluster -S nodes=2 -r

A run that ends well fills systems/measured/SYSTEM.yaml, from which a planner takes the machine's bandwidths. It takes
four nodes, as rings of two nodes and of four part the latency of a step from what small messages lose; where the
partition has fewer it takes all of them.
"""

import reframe as rfm
from reframe.core.builtins import run_before, variable
from reframe.core.logging import getlogger
from reframe.utility import typecheck as typ

import systems
from engine.result.schema.bench import Links
from suites.base.figures import Figures
from suites.base.kept import links_of, superseded
from suites.base.links import LinksTest
from suites.base.running import NIGHTLY, Worth
from suites.base.series import CALIBRATION
from systems import store


@rfm.simple_test
class Bandwidth(LinksTest):
    """Rings on all devices of some nodes. keep: whether the system's file is written."""

    descr = "bandwidth within a node and between nodes"
    worth = Worth.LINKS
    tags = {"bandwidth", NIGHTLY, CALIBRATION}
    usual_nodes, most_ranks_here = 4, 8
    keep = variable(typ.Bool, value=True)

    def figures(self) -> Figures:
        return figures_of(self.links)

    @run_before("performance")
    def fill_the_store(self) -> None:
        """Write the system's file, also with a link that is slower than ever, which fails. If it can't be written the
        log says so: that is no failure, as what was measured is in the run's result.
        """
        if self.is_dry_run() or not self.keep:
            return
        name, found = self.system.name, links_of(self.result)
        before = systems.measured(name)
        if before is not None and (reason := superseded(before, found)):
            getlogger().warning(f"what is kept of {name} stays: {reason}")
            return
        try:
            file = store.keep(name, found)
        except OSError as error:
            getlogger().warning(f"the bandwidths of {name} could not be kept: {error}")
            return
        getlogger().info(f"{file} now holds the bandwidths of {name}")


def figures_of(links: Links) -> Figures:
    """Return the bandwidths by name; within_2x4 is that of groups of four ranks that are two apart."""
    found: Figures = {}
    for rings in links.within:
        found[f"within_{rings.apart}x{rings.ranks}"] = (rings.bytes_per_s, "B/s")
    for rings in links.alone:
        found[f"alone_{rings.nodes}_nodes"] = (rings.bytes_per_s, "B/s")
    for rings in links.shared:
        found[f"shared_{rings.apart}x{rings.ranks}"] = (rings.bytes_per_s, "B/s")
    if link := links.fitted:
        found |= {"link": (link.bytes_per_s, "B/s"), "step": (link.step_s, "s"), "half_size": (link.half_bytes, "B")}
    return found
