"""Example site: real results of processors and a virtual cluster, small enough to be committed."""
