"""Results to a readable report: load -> frame (pandas) -> figures -> pages. `python -m reports build` writes it."""
