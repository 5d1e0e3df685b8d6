"""What the ``format`` of a JSON schema demands of a text, where the grammar engine demands too little or knows it not.

Leaves to others: the formats it enforces by itself, such as uuid and ipv4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.errors import UsageError

__all__ = ["text_format"]

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAYS = r"(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAYS}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP})"
)  # fmt: skip
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

# No leap seconds, which few validators take, and no 29th of February but where there is one.
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "email": {"format": "email", "maxLength": 254, "pattern": "^[^@]{1,64}@"},
    "hostname": {"format": "hostname", "maxLength": 253},
    "json-pointer": {"pattern": f"^{_POINTER}$"},
    "relative-json-pointer": {"pattern": f"^(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})$"},
    "byte": {"pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
    **{name: {"format": name} for name in ("duration", "ipv4", "ipv6", "uri", "uuid")},
}
# What is looser than another format is enforced as that one.
_STRICTER = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    **dict.fromkeys(("uri-reference", "iri", "iri-reference", "uri-template"), "uri"),
}
# Hints of OpenAPI for programs, which say nothing of the text.
_HINTS = frozenset({"binary", "password", "int32", "int64", "float", "double", "decimal"})


def text_format(name: Any) -> Mapping[str, Any]:
    """Return the keywords that enforce a format.

    Raises:
        UsageError: It is unknown.
    """
    if name in _HINTS:
        return {}
    if not isinstance(name, str) or (found := _FORMATS.get(_STRICTER.get(name, name))) is None:
        raise UsageError(f"the format {name!r:.80} cannot be enforced")
    return found
