"""Writes the grammar of an answer to a conversation: of a form, of calls, or of free text with calls in it.

Leaves to others: the rules of forms and schemas (``structured.grammar``) and compiling them (``Grammars``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from treadle.engine.structured.form import JsonForm
from treadle.engine.structured.grammar import Rules, form_rule, json_rule, literal
from treadle.engine.structured.json_schema import enforceable
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.structured.form import AnswerForm
    from treadle.models.tool_dialects.dialect import CallFrame, Dialect

__all__ = ["forced_rules", "free_rules", "tells_calls"]

_Schemas = Mapping[str, Mapping[str, Any]]


def forced_rules(dialect: Dialect, schemas: _Schemas, form: AnswerForm | None, *, is_parallel: bool) -> Rules:
    """Return the grammar of an answer that has a ``form``, unless it calls functions, or must be calls if it has none.

    Args:
        dialect: How calls are written.
        schemas: Those of the functions that may be called, by name.
        form: What the text of the answer must be.
        is_parallel: Whether there may be several calls.
    """
    if form is not None and not schemas:
        return Rules(f"start: answer\nanswer: {form_rule(form)}", isinstance(form, JsonForm))
    calls = 'call ("\\n" call)*' if is_parallel and dialect.is_json else "call"
    rules = [f"start: {calls}" if form is None else f"start: answer | {calls}"]
    if form is not None:
        rules.append(f"answer: {form_rule(form)}")
    rules += _calls(dialect.frame, schemas)
    return Rules("\n".join(rules), form is None or isinstance(form, JsonForm))


def tells_calls(dialect: Dialect) -> bool:
    """Tell whether a control token of the dialect tells a call from text, so that calls amid text can be enforced."""
    return dialect.frame.opening.strip() in dialect.control_tokens


def free_rules(dialect: Dialect, schemas: _Schemas, strict: Collection[str]) -> Rules:
    """Return the grammar of free text whose calls are of functions in ``schemas``, by their schemas if ``strict``.

    The dialect must be one that ``tells_calls``.
    """
    marker = dialect.frame.opening.strip()
    frame = dataclasses.replace(dialect.frame, opening=dialect.frame.opening.removeprefix(marker))
    anything = r"(.|\n)*"
    rules = [
        "start: (text call)* REST?",
        f"text[suffix={literal(marker)}]: /{anything}/",
        f"REST: /{anything}/ & ~/{anything}{re.escape(marker)}{anything}/",
        *_calls(frame, {name: schema if name in strict else {} for name, schema in schemas.items()}),
    ]
    return Rules("\n".join(rules), is_json=False)


def _calls(frame: CallFrame, schemas: _Schemas) -> list[str]:
    """Return the rules of one call of any of these functions."""
    rules = [f"call_{index}: {_framed_call(frame, name, schemas[name])}" for index, name in enumerate(schemas)]
    return ["call: " + " | ".join(f"call_{index}" for index in range(len(schemas))), *rules]


def _framed_call(frame: CallFrame, name: str, schema: Mapping[str, Any]) -> str:
    try:
        arguments = {"type": "object", **enforceable(schema)}
    except UsageError as error:
        raise UsageError(f"the function {name!r:.80}: {error.args[0]}", field="tools") from None
    if arguments["type"] != "object":
        found = arguments["type"]
        text = f"the function {name!r:.80}: expected a schema of type object, found {found!r:.80}"
        raise UsageError(text, field="tools")
    definitions = {"$defs": arguments.pop("$defs")} if "$defs" in arguments else {}
    call = {
        "type": "object",
        "properties": {"name": {"const": name}, frame.arguments_key: arguments},
        "required": ["name", frame.arguments_key],
        "additionalProperties": False,
        **definitions,
    }
    opening, closing = (literal(text) if text else "" for text in (frame.opening, frame.closing))
    return " ".join(term for term in (opening, json_rule(call), closing) if term)
