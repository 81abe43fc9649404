"""These are the layers of the 4D algorithm, one file each. Each is built from its serial layer's placements.

Shape suffixes: M rows of this rank (tokens), K and N a matmul's local inputs and outputs, B sequences, S positions,
H local features.
"""
