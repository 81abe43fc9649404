"""Training data: a folder of text prepared once into token shards, and samples that no grid can change.

corpus.py prepares, tokens.py reads, sampler.py says which sequence stands where in which step. No torch.
"""

from engine.data.corpus import prepare
from engine.data.sampler import batch, rows
from engine.data.tokens import Dataset, Header, Synthetic, Tokens, open_dataset

__all__ = ["Dataset", "Header", "Synthetic", "Tokens", "batch", "open_dataset", "prepare", "rows"]
