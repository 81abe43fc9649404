"""`ci/cluster`, and what it starts in the namespaces of each node: `python3 -m virtual_cluster inside NODE`."""

import sys

from virtual_cluster import node
from virtual_cluster.command import main

if sys.argv[1:2] == ["inside"]:
    node.live(sys.argv[2])
sys.exit(main(sys.argv[1:]))
