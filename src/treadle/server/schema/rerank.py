"""The body of ``/v1/rerank``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from treadle.server.schema.base import Body, ModelName, ShortText, Whole, mistake

__all__ = ["RerankRequest"]

_TEXT = {"type": "string"}
_OBJECT = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"], "additionalProperties": False}
_SCHEMA = {"type": "array", "items": {"anyOf": [_TEXT, _OBJECT]}, "minItems": 1}


def _read(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise mistake("", "expected a list of one or more documents, each text or an object with text")
    return [_text(each, f"[{index}]") for index, each in enumerate(value)]


def _text(value: Any, place: str) -> str:
    if isinstance(value, dict) and value.keys() == {"text"}:
        value, place = value["text"], f"{place}.text"
    if not isinstance(value, str):
        raise mistake(place, "expected text, or an object with text and nothing else")
    return value


# Their texts, in whatever form they were sent.
Documents = Annotated[list[str], PlainValidator(_read), WithJsonSchema(_SCHEMA)]


class RerankRequest(Body):
    """A query, and documents to be put in the order of how well they answer it; see the APIs of Jina and Cohere.

    ``normalize`` and ``priority`` are additions to those APIs, ``truncate_prompt_tokens`` is vLLM's.
    """

    model: ModelName | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Documents
    top_n: Whole | None = Field(None, ge=1)
    return_documents: bool | None = None
    truncate_prompt_tokens: Whole | None = Field(None, ge=-1)
    user: ShortText | None = None
    normalize: bool | None = None
    priority: Literal["interactive", "batch"] | None = None
