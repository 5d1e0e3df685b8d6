"""The form of a structured final answer, as a tool that the model gives it with.

Leaves to others: offering the tool and forcing it in the end (``run``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.agents.model_schema import for_model
from treadle.agents.tool import ToolSpec
from treadle.errors import ToolError, UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["ANSWER_TOOL", "AnswerShape"]

ANSWER_TOOL = "final_answer"
_DESCRIPTION = "Give the final answer to the task. Call it alone, once everything that it needs is known."


class AnswerShape:
    """What the arguments of the answer's tool are, and what becomes of them.

    A schema of something else than an object is the one argument ``answer``.

    Args:
        schema: A pydantic model, or a JSON schema.

    Raises:
        UsageError: It is neither.
    """

    def __init__(self, schema: type[BaseModel] | Mapping[str, Any]) -> None:
        self._model: type[BaseModel] | None = None
        if isinstance(schema, Mapping):
            parameters = dict(schema)
        elif hasattr(schema, "model_json_schema"):
            self._model = schema
            parameters = for_model(schema.model_json_schema())
        else:
            raise UsageError(f"answer_schema: expected a pydantic model or a JSON schema, found {schema!r:.80}")
        self._is_wrapped = parameters.get("type") != "object"
        if self._is_wrapped:
            definitions: dict[str, Any] = {
                key: parameters.pop(key) for key in ("$defs", "definitions") if key in parameters
            }
            parameters = {
                "type": "object",
                "properties": {"answer": parameters},
                "required": ["answer"],
                "additionalProperties": False,
                **definitions,
            }
        self.spec = ToolSpec(ANSWER_TOOL, _DESCRIPTION, parameters, is_read_only=True)
        self._is_text = False

    @classmethod
    def of_text(cls) -> AnswerShape:
        """Return the form of an answer in plain words, which is text and no data."""
        shape = cls({"type": "string", "description": "The answer, in plain words."})
        shape._is_text = True
        return shape

    def read(self, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the answer as JSON text and as data; one in plain words as it is, and no data.

        Raises:
            ToolError: The model class refuses it for what no schema says.
        """
        value = arguments["answer"] if self._is_wrapped else dict(arguments)
        if self._is_text:
            return str(value), None
        text = json.dumps(value, ensure_ascii=False)
        if self._model is None:
            return text, value
        import pydantic  # noqa: PLC0415

        try:
            return text, self._model.model_validate_json(text)
        except pydantic.ValidationError as error:
            problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
            raise ToolError("; ".join(problems)) from None
