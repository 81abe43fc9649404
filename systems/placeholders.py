"""Placeholders in the options of a system's file: a name in braces each; all other braces are an option's own."""

import difflib
import re

ACCOUNT, DEVICES, RANKS_PER_NODE = "account", "devices", "ranks_per_node"
PLACES = {ACCOUNT: "access", DEVICES: "devices_option", RANKS_PER_NODE: "launcher_options and full_node_options"}
"""The keys of a partition that each placeholder is replaced in."""

_BRACES = re.compile(r"(?<!\$)\{([^{}]*)\}")
"""Placeholder; a shell's ${NAME} is none."""
_NAME = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:[:!].*)?")
NEAR = 0.8
"""Similarity (of 1) from which a name is taken for a misspelt placeholder."""


def speaks_of(placeholder: str, text: str) -> bool:
    """Return whether the placeholder stands in the text."""
    return placeholder in _BRACES.findall(text)


def replace(text: str, placeholder: str, value: object) -> str:
    """Put a value in place of a placeholder, wherever it stands."""
    return _BRACES.sub(lambda found: str(value) if found[1] == placeholder else found[0], text)


def check(text: str, placeholder: str) -> str:
    """Return the text of a key that this placeholder belongs to.

    Raises ValueError for a placeholder of another key, and for what is nearly one: nobody means it as it is.
    """
    for inside in _BRACES.findall(text):
        if inside == placeholder or not (name := _NAME.fullmatch(inside)):
            continue
        for meant in difflib.get_close_matches(name[1].lower().replace("-", "_"), PLACES, n=1, cutoff=NEAR):
            if meant != placeholder:
                raise ValueError(
                    f"{{{inside}}} is none of its placeholders: {{{meant}}} is one of {PLACES[meant]} alone"
                )
            raise ValueError(f"{{{inside}}} should be {{{placeholder}}}")
    return text
