"""What all request bodies share: strict types, no unknown fields, and fields that are known but refused.

Leaves to others: the fields of each route (the other files of this folder) and the HTTP answer (``server.errors``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

__all__ = [
    "MAX_CHOICES",
    "MAX_ID_LENGTH",
    "MAX_MESSAGES",
    "Body",
    "ModelName",
    "Off",
    "ServiceTier",
    "ShortText",
    "Unsupported",
    "Whole",
    "mistake",
]

MAX_CHOICES = 16
MAX_ID_LENGTH = 256
MAX_MESSAGES = 16_384  # a template takes a second for so many


class Body(BaseModel):
    """A request body or a part of one: a wrong type or an unknown field is an error, never a guess."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


def mistake(field: str, problem: str) -> PydanticCustomError:
    """Return the error of a field that does not go with the others; ``field`` is its path within the validated part."""
    return PydanticCustomError("mistake", "{problem}", {"field": field, "problem": problem})


def _refuse(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError("unsupported", "this server does not support it; leave it out or send null")


def _refuse_true(value: bool | None) -> bool | None:
    if value:
        _refuse(value)
    return value


# A field of the API that Treadle knows and does not have. Null means the same as leaving it out.
Unsupported = Annotated[
    Any, BeforeValidator(_refuse), WithJsonSchema({"type": "null", "description": "Known, but not supported."})
]


def _as_whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# A whole number, however it is written: JSON has one kind of number only, and some clients send 3.0 for 3.
Whole = Annotated[int, BeforeValidator(_as_whole)]
# A switch of the API that cannot be on here.
Off = Annotated[bool | None, AfterValidator(_refuse_true)]

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)]
# There is one tier; whichever is asked for, answers say that it was the default one.
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
ShortText = Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]
