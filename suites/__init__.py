"""ReFrame tests, one file a study: parameters, launch line, sanity, performance. What studies share is in base/.

Of the engine they use the command line, and its records of grids, results and errors.
"""
