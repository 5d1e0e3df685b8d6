"""The page about HTTP, from the OpenAPI document of the server; ``generate.py`` writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from treadle.server.app import create_app
from treadle.server.hub import ModelHub
from treadle.server.openapi import FAILURES
from treadle.server.settings import ServerSettings

_UNSUPPORTED = "Known, but not supported."
_INTRODUCTION = """
What `treadle serve` answers to; `/openapi.json` of a server has the same for machines. [How to
serve](../guides/serve.md), [how to use it from clients](../guides/openai-clients.md). A body is JSON, and every field
that is not marked may be left out or null. An unknown field is a 400 that names it, and so is one that is known but not
supported.

A key goes into `Authorization: Bearer KEY` or `x-api-key: KEY`, where the server has keys. Every response carries
`x-request-id`; a client's own is kept.

## Failures

`{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}`, and below `/v1/messages` the Anthropic API's
`{"type": "error", "error": {"type": ..., "message": ...}}`. After a stream has begun, an event of the same form ends
it.
""".strip().splitlines()


def http_page(note: str) -> Iterator[str]:
    hub = ModelHub({"smollm2-135m": "smollm2:135m"}, load=None)  # type: ignore[arg-type]  nothing is loaded
    document = create_app(hub, ServerSettings()).openapi()
    schemas = document["components"]["schemas"]
    yield from ("# HTTP", "", note, "", *_INTRODUCTION, "")
    yield from ("| status | meaning |", "| --- | --- |")
    yield from (f"| {status} | {meaning} |" for status, meaning in FAILURES.items())
    bodies = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from ("", f"## {method.upper()} {path}", "", *operation["description"].splitlines())
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                bodies.add(name_of(reference))
                yield from ("", *body(schemas[name_of(reference)]))
    yield from ("", "## Parts of bodies")
    for name in sorted(schemas, key=lambda name: name.strip("_")):
        if name not in bodies and not name.endswith("Error"):
            yield from ("", f"### {name.strip('_')}", "", *described(schemas[name]), *fields(schemas[name]))


def body(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from ("```json", json.dumps(schema["examples"][0]), "```", "")
    yield from fields(schema)
    refused = [f"`{name}`" for name, field in schema["properties"].items() if field.get("description") == _UNSUPPORTED]
    if refused:
        yield from ("", f"Known, but refused: {', '.join(refused)}.")


def described(schema: Mapping[str, Any]) -> list[str]:
    text = schema.get("description", "")
    return [*re.sub(r"``", "`", text).splitlines(), ""] if text else []


def fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if not schema.get("properties"):
        return
    yield from ("| field | value |", "| --- | --- |")
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if field.get("description") != _UNSUPPORTED:
            must = " (must be there)" if name in required else ""
            yield f"| `{name}`{must} | {kind(field)} |"


def kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = name_of(schema["$ref"]).strip("_")
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            kinds = [kind(each) for each in schema[union] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    name = schema.get("type", "anything")
    if name == "array":
        return f"list of {kind(schema.get('items', {}))}{bounds(schema, 'minItems', 'maxItems', 'entries')}"
    if name == "string":
        return f"text{bounds(schema, 'minLength', 'maxLength', 'characters')}"
    return f"{name}{bounds(schema, 'minimum', 'maximum', '')}"


def bounds(schema: Mapping[str, Any], least: str, most: str, unit: str) -> str:
    low, high = schema.get(least), schema.get(most)
    above = schema.get("exclusiveMinimum") if least == "minimum" else None
    if above is not None:
        text = f"above {above}" + ("" if high is None else f", at most {high}")
    elif low is not None and high is not None:
        text = f"{low} to {high}"
    elif high is not None:
        text = f"at most {high}"
    elif low:
        text = f"at least {low}"
    else:
        return ""
    return f", {text} {unit}".rstrip()


def name_of(reference: str) -> str:
    return reference.rpartition("/")[2]
