"""The 4D-parallel training engine: data parallelism times a 3D parallel matrix multiplication (axonn-sc24).

Importing this package is cheap on purpose: torch is imported by the modules that compute, so that a
command line can be checked on a login node without it.
"""
