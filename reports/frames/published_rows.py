"""Contests that ran as a published row of a trainer's table did, by what the row tells of its run."""

from collections.abc import Mapping
from typing import Any

from engine.published import Number
from reports.text import number as finite

RECOMPUTED = {"none": "False", "all": "True", "selective": "True"}
"""What a contest has to compute again, as its frame says it, for what a row does. None computes again selectively: then
everything is, which takes no less time.
"""


def ran_as(row: Mapping[Any, Any], number: Number) -> bool:
    """Return whether a contest has the row's batch, lengths, micro-batch, formats and recomputation, as far as the row
    tells them; nothing of networks, devices and trainers.
    """
    tokens = finite(row["sequences"]) * finite(row["sequence"])
    told = {
        "sequence": number.sequence,
        "peer_micro_batch": number.micro_batch,
        "dtype": number.dtype,
        "sums": number.sums,
        "checkpointing": RECOMPUTED.get(number.recomputed),
    }
    same = all(str(row[name]) == str(wanted) for name, wanted in told.items() if wanted)
    return same and number.batch_tokens in (None, tokens)
