"""Removal of what names a machine, its user or its folders from results before they are committed, here and only here:
host names, user names, folders, variables with folders, and the build of the kernel.

What tells how to read a number stays: the processor's kind, versions, numbers of threads, Slurm's variables, bindings,
the time and the commit. Hosts n0 to n3 are the virtual cluster's own names.
"""

import getpass
import os
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

NODE, USER = "node", "user"
"""Words in place of this machine's name and of the user's."""
NOBODY = "root"
"""User that every machine has."""
FOLDER = re.compile(r"(?<![\w:/.~+=-])(?:/[\w.+@~=,-]+){2,}/?")
"""Absolute path of two parts or more, of which the last one stays."""
KERNEL = re.compile(r"\d+(\.\d+)*")
DATA = 500
"""Length from which a text without a blank is data, such as an image's."""
ENVIRONMENT, VERSIONS = "environment", "versions"


class Names(NamedTuple):
    """Words that tell which machine it was."""

    hosts: tuple[str, ...]
    users: tuple[str, ...]

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern of any of them as a word of its own."""
        known = sorted({*self.hosts, *self.users}, key=len, reverse=True)
        return re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, known))})(?![\w-])") if known else re.compile("(?!)")


def own_names() -> Names:
    """Return this machine's names, long and short, and the user's."""
    long = {socket.gethostname(), socket.getfqdn(), os.uname().nodename} - {"", "localhost"}
    try:
        users = {getpass.getuser()}
    except (OSError, KeyError):  # a user without a name
        users = set()
    hosts = {*long, *(name.partition(".")[0] for name in long)}
    return Names(tuple(sorted(hosts)), tuple(sorted(users - {"", NOBODY})))


def scrub(document: Any, names: Names) -> Any:
    """Return a document without what names a machine."""
    return _scrubbed(document, names, names.pattern)


def _scrubbed(value: Any, names: Names, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return _text(value, names, pattern)
    if isinstance(value, list):
        return [_scrubbed(one, names, pattern) for one in value]
    if not isinstance(value, Mapping):
        return value
    found = {_text(key, names, pattern): _scrubbed(one, names, pattern) for key, one in value.items()}
    variables, versions = value.get(ENVIRONMENT), found.get(VERSIONS)
    if isinstance(variables, Mapping):
        kept = {name: one for name, one in variables.items() if not (isinstance(one, str) and "/" in one)}
        found[ENVIRONMENT] = _scrubbed(kept, names, pattern)
    if isinstance(versions, dict) and isinstance(kernel := versions.get("kernel"), str):
        known = KERNEL.match(kernel)
        found[VERSIONS] = versions | {"kernel": known.group() if known else ""}
    return found


def _text(text: str, names: Names, pattern: re.Pattern[str]) -> str:
    if len(text) > DATA and " " not in text:
        return text
    without = FOLDER.sub(lambda found: found.group().rstrip("/").rpartition("/")[2], text)
    return pattern.sub(lambda found: NODE if found.group() in names.hosts else USER, without)
