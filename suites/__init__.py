"""ReFrame tests, one file a study: parameters, launch line, sanity, performance.

The engine is used by its command line only.
"""
