"""ReFrame tests, one file a study: parameters, launch line, sanity, performance.

What the engine computes is asked for by its command line only; its grid, errors and file formats are shared.
"""
