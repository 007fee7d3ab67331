"""Documents on disk, which another version of tfcluster may have written, or may read.

Each kind of document has a format, a number that grows only if an older version would misunderstand the document: a
field is missing or has another meaning, or an enumeration has another value. A new field with a default value needs no
new format, because readers give missing fields their defaults and ignore unknown ones. What tfcluster 0.1.0 has written
has no number; it is format 1.

The files next to a journal that only agents read, such as those with secret values, change their format with the
journal's: an agent that cannot read the journal does not touch them.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tfcluster.protocol.serialization import decode, to_json
from tfcluster.version import PROTOCOL, __version__

T = TypeVar("T")

#: What to do about a document that a newer version has written.
NEWER_HINT = "Nothing was changed. Install that version, or a newer one, and repeat the command."


class NewerFormatError(ValueError):
    """A document has a format that only newer versions know. Nothing here may change or remove it."""


def to_stored(value: object, format_number: int) -> dict[str, Any]:
    """Return the JSON value of a document: a dataclass or a mapping, with its format and who has written it."""
    return {"format": format_number, "tfcluster": __version__, **to_json(value)}


def from_stored(kind: type[T], document: Any, known: int) -> T:
    """Decode a document of any format up to the last that is known; a newer one raises a NewerFormatError."""
    check_format(document, known)
    return decode(kind, document, lenient=True)


def check_format(document: Any, known: int) -> None:
    """Raise a NewerFormatError if a document has a newer format than the last that is known."""
    found = decode(int, _header(document).get("format", 1), "format")
    if found > known:
        raise _newer(document, f"its format is {found}, and this version ({__version__}) reads formats up to {known}")


def check_protocol(document: Any, protocol: int) -> None:
    """Raise a NewerFormatError if an agent of a newer version of the protocol has written a document.

    An agent that continued from there would lock out the commands that have started the newer one.
    """
    if protocol > PROTOCOL:
        raise _newer(document, f"its protocol is {protocol}, and that of this version ({__version__}) is {PROTOCOL}")


def _newer(document: Any, reason: str) -> NewerFormatError:
    return NewerFormatError(f"written by tfcluster {_header(document).get('tfcluster', '?')}, which is newer: {reason}")


def _header(document: Any) -> dict[str, Any]:
    return document if isinstance(document, dict) else {}
