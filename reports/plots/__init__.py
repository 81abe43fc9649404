"""Drawings by matplotlib that know nothing of results: lines, dots, rows of bars or ratios, heat maps, steps."""
