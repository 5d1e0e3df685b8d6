"""What all request bodies share: strict types, no unknown fields, and fields that are known but refused.

Leaves to others: the fields of each route (the other files of this folder) and the HTTP answer (``server.errors``).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

__all__ = ["MAX_CHOICES", "MAX_ID_LENGTH", "MAX_MESSAGES", "Body", "ModelName", "ShortText", "Unsupported"]

MAX_CHOICES = 16
MAX_ID_LENGTH = 256
MAX_MESSAGES = 16_384  # a template takes a second for so many


class Body(BaseModel):
    """A request body or a part of one: a wrong type or an unknown field is an error, never a guess."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


def _refuse(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError("unsupported", "this server does not support it; leave it out or send null")


# A field of the API that Treadle knows and does not have. Null means the same as leaving it out.
Unsupported = Annotated[
    Any, BeforeValidator(_refuse), WithJsonSchema({"type": "null", "description": "Known, but not supported."})
]

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)]
ShortText = Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]
