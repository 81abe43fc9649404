"""Layers of the 4D algorithm, each built from its serial layer's placements.

Shape suffixes: M rows of this rank (tokens), K and N a matmul's local inputs and outputs, B sequences, S positions, H
local features.
"""
