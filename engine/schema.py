"""Base of every file format: typed, frozen, no unknown keys, and errors that name the key."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a file, or of a text."""


class Record(BaseModel):
    """Part of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Document(Record):
    """Whole file, of which the keys "schema" and "version" say how it is read."""

    model_config = ConfigDict(validate_by_name=True)

    def to_json(self) -> str:
        """Write the text of the file."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def first_problem(error: ValidationError) -> str:
    """Return the first finding of a pydantic error as one sentence: the key, what is expected there, what was given."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"]) or "the document"
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"at {key}: {problem['msg'][0].lower()}{problem['msg'][1:]}, given {str(problem['input'])[:80]!r}{more}."
