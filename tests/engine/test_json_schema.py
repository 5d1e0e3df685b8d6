"""Grammars of JSON schemas: what they allow is valid, what they cannot enforce is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from grammar_walk import accepts, begin, walk

from treadle.engine.structured import schema_trial
from treadle.engine.structured.form import JsonForm
from treadle.errors import UsageError

TEXT = {"type": "string", "maxLength": 6}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(levels):
        schema = record(a=schema)
    return schema


ENFORCED: dict[str, Any] = {
    "types": {"type": ["integer", "null", "boolean", "string"], "maxLength": 3},
    "mixed enum": {"enum": [1, "a", None, True, 2.5, {"a": [1]}, [1, 2]]},
    "enum cut by type": {"type": "integer", "enum": [1, "a", 3]},
    "const": {"const": {"b": 1, "a": [True, None, 'say "hi" \\ \n é 😀']}},
    "definitions": {"definitions": {"p": DIGIT}, **record(x={"$ref": "#/definitions/p"})},
    "sibling of $ref": {"$defs": {"p": {"type": "integer", "minimum": 0}}, "$ref": "#/$defs/p", "maximum": 9},
    "anchor": {"$defs": {"p": {"$anchor": "here", **DIGIT}}, "$ref": "#here"},
    "own $id": {"$id": "http://x/y", "$defs": {"p": DIGIT}, "$ref": "http://x/y#/$defs/p"},
    "odd pointers": {"$defs": {"a/b~c d": DIGIT, "é": TEXT}, "anyOf": [{"$ref": "#/$defs/a~1b~0c%20d"}, {"$ref": "#/$defs/é"}]},
    "reference elsewhere": {"components": {"x": DIGIT}, **record(a={"$ref": "#/components/x"}, b={"$ref": "#/properties/a"})},
    "recursion": record(v=DIGIT, next={"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
    "anyOf": {"anyOf": [TEXT, DIGIT, False]},
    "anyOf beside properties": {
        "type": "object",
        "properties": {"a": DIGIT, "b": DIGIT, "c": DIGIT},
        "anyOf": [{"required": ["b"]}, {"required": ["c"]}],
        "additionalProperties": False,
    },
    "oneOf": {"oneOf": [record(t={"const": "a"}, x=DIGIT), record(t={"const": "b"}, y=TEXT)]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 99}, {"multipleOf": 4}, {"multipleOf": 6}]},
    "optional properties": {"type": "object", "properties": dict.fromkeys("abcd", DIGIT), "required": ["c"], "additionalProperties": False},
    "open object": {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": DIGIT, "maxProperties": 3},
    "key patterns": {"type": "object", "patternProperties": {"^[ab]{1,2}$": DIGIT}, "additionalProperties": False, "minProperties": 1, "maxProperties": 2},
    "key patterns beside properties": {
        "type": "object",
        "properties": {"x_a": {"type": "integer", "minimum": 0}},
        "patternProperties": {"^x_": {"type": "integer", "maximum": 9}},
        "required": ["x_a"],
        "maxProperties": 2,
    },
    "names from a list": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": DIGIT},
    "names by a pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": DIGIT, "maxProperties": 2},
    "no unevaluated": {"type": "object", "properties": {"a": DIGIT}, "unevaluatedProperties": False},
    "required, not described": {"type": "object", "required": ["b", "a"], "additionalProperties": DIGIT, "maxProperties": 2},
    "odd names": record(**{'a"b': DIGIT, "c\\d": DIGIT, "e\nf": DIGIT, "": DIGIT, "/": DIGIT, "ключ😀": DIGIT, "$ref": DIGIT, "x-guidance": DIGIT}),
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4.0},
    "unanchored pattern": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 5},
    "alternatives of a pattern": {"type": "string", "pattern": "^a|b$", "maxLength": 3},
    "classes of a pattern": {"type": "string", "pattern": r"^[a&-][^\W_]\S\D[\w-][^\d\s\w][^\D]$"},
    "pattern that backtracks": {"type": "string", "pattern": "^(a+)+$", "maxLength": 10},
    "date": {"type": "string", "format": "date"},
    "email": {"type": "string", "format": "email", "maxLength": 12},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "integers": {"type": "integer", "minimum": -12, "exclusiveMaximum": 1234},
    "halves": {"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 7},
    "numbers": {"type": "number", "exclusiveMinimum": -0.5, "maximum": 3.25},
    "any number": {"type": "number"},
    "draft 4": {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9},
    "items": {"type": "array", "items": DIGIT, "minItems": 2.0, "maxItems": 4},
    "prefix": {"type": "array", "prefixItems": [DIGIT, TEXT], "items": False, "minItems": 1},
    "prefix and items": {"type": "array", "prefixItems": [DIGIT], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "what demands nothing": {"not": False, "uniqueItems": False, "if": {}, "propertyNames": {"type": "string"}, "format": "int32", **DIGIT},
    "annotations": {"title": "T", "description": "d", "default": 3, "examples": [1], "$comment": "\x01", "nullable": True, **DIGIT},
    "booleans": record(a={"anyOf": [True, False], "enum": [1]}),
    "many names": {"type": "object", "properties": {f"field_{index}": DIGIT for index in range(1000)}, "additionalProperties": False},
    "many values": {"enum": [f"value {index}" for index in range(5000)]},
    "many levels": nested(40),
    "great limits": record(a={"type": "string", "maxLength": 10**12}, b={"type": "array", "items": DIGIT, "maxItems": 10**9}),
}  # fmt: skip


@pytest.mark.parametrize("name", ENFORCED)
def test_what_is_allowed_is_valid(name: str) -> None:
    schema = ENFORCED[name]
    drafts = {"draft 4": jsonschema.Draft4Validator}
    validator_of: Any = drafts.get(name, jsonschema.Draft202012Validator)
    validator = validator_of(schema, format_checker=validator_of.FORMAT_CHECKER)
    texts = [text for seed in range(4) if (text := walk(schema, seed)) is not None]
    assert texts or name in ("many levels", "great limits")
    for text in texts:
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "text", "is_valid"),
    [
        ({"type": "string", "format": "date"}, '"2024-02-29"', True),
        ({"type": "string", "format": "date"}, '"2023-02-29"', False),
        ({"type": "string", "format": "date"}, '"1900-02-29"', False),
        ({"type": "string", "format": "date"}, '"2023-04-31"', False),
        ({"type": "string", "format": "date"}, '"0000-01-01"', False),
        ({"type": "string", "format": "date-time"}, '"2000-02-29T23:59:59.5+23:59"', True),
        ({"type": "string", "format": "date-time"}, '"2001-02-29T23:59:59Z"', False),
        ({"type": "string", "format": "time"}, '"12:00:60Z"', False),
        ({"type": "string", "format": "hostname"}, f'"{"a" * 60}.{"b" * 60}"', True),
        ({"type": "string", "format": "hostname"}, f'"{".".join(["a" * 60] * 5)}"', False),
        ({"type": "string", "pattern": "^.$"}, '"\\r"', False),
        ({"type": "string", "pattern": r"^\S$"}, '"\u00a0"', False),
        ({"type": "string", "pattern": "^[[:alpha:]]$"}, '"a]"', True),
        ({"type": "string", "pattern": "^[[:alpha:]]$"}, '"z"', False),
        ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": DIGIT}, '{"b": 1}', True),
        ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": DIGIT}, r'{"\u0061": 1}', False),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "3", False),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": False}, "3", True),
        ({"type": "number"}, "-6.02214076e23", True),
        ({"type": "number"}, "1e999", False),
        ({"type": "integer"}, "9" * 20, True),
        ({"type": "integer"}, "9" * 21, False),
        ({"enum": ["9" * 30, 5]}, f'"{"9" * 30}"', True),
        ({"type": "string"}, f'"a\\"{"9" * 30}"', True),
        ({"items": [DIGIT], "additionalItems": False}, "[1]", True),
        ({"items": [DIGIT], "additionalItems": False}, "[1, 2]", False),
        (True, "[]", True),
    ],
)
def test_texts(schema: Any, text: str, is_valid: bool) -> None:
    assert accepts(schema, text) is is_valid


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        *(
            (record(a={keyword: value, **DIGIT}), f"#/properties/a/{keyword}", keyword)
            for keyword, value in {
                "not": {"type": "null"},
                "contains": {},
                "uniqueItems": True,
                "dependentRequired": {"a": ["b"]},
                "dependentSchemas": {"a": {}},
                "dependencies": {"a": ["b"]},
                "$dynamicRef": "#a",
                "propertyNames": {"minLength": 3},
            }.items()
        ),
        ({"items": {"if": {}, "then": {}}}, "#/items/if", "if"),
        ({"type": "object", "minProperties": 2}, "#/minProperties", "one name more"),
        ({"anyOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties", "beside others"),
        ({"$ref": "#/nothing"}, "#/$ref", "nothing"),
        ({"$ref": "https://example.com/s"}, "#/$ref", "outside"),
        ({"$ref": 3}, "#/$ref", "text"),
        ({"items": {"$id": "a"}}, "#/items", "$id"),
        ({"items": {"type": "text"}}, "#/items/type", "text"),
        ({"items": 3}, "#/items", "object or a boolean"),
        ({"properties": []}, "#/properties", "object of schemas"),
        ({"required": "a"}, "#/required", "list"),
        ({"anyOf": []}, "#/anyOf", "list of schemas"),
        ({"enum": []}, "#/enum", "list"),
        ({"format": "phone"}, "#/format", "phone"),
        ({"minLength": -1}, "#/minLength", "-1"),
        ({"maxLength": 4.5}, "#/maxLength", "4.5"),
        ({"maxItems": float("inf")}, "#/maxItems", "inf"),
        ({"minimum": 10**20}, "#/minimum", "2^53"),
        ({"maximum": "3"}, "#/maximum", "number"),
        ({"maximum": float("inf")}, "#/maximum", "2^53"),
        ({"const": 2**53 + 1}, "#/const", "2^53"),
        ({"enum": [float("inf")]}, "#/enum", "inf"),
        ({"multipleOf": 0}, "#/multipleOf", "more than 0"),
        ({"multipleOf": 999983}, "#/multipleOf", "10000"),
        ({"const": "\ud83d"}, "#/const", "U+D83D"),
        (record(**{"a\x01": DIGIT}), "#/properties/a\\x01", "U+0001"),
        ({"pattern": "^(?=a)"}, "#/pattern", "look-ahead"),
        ({"pattern": "(?<!a)b"}, "#/pattern", "look-ahead"),
        ({"pattern": r"(a)\1"}, "#/pattern", "reference"),
        ({"pattern": r"\bfoo\b"}, "#/pattern", "boundary"),
        ({"pattern": "(?i)a"}, "#/pattern", "(?i"),
        ({"pattern": "a\\"}, "#/pattern", "backslash"),
        ({"items": {"properties": {"a": {"type": "string", "pattern": "("}}}}, "#/items/properties/a", "unclosed"),
        ({"$defs": {"p": {"type": "string", "pattern": "x^a"}}, "items": {"$ref": "#/$defs/p"}}, "#/$defs/p", "x^a"),
        (record(a=record(b={"minItems": 3, "maxItems": 2, "type": "array"})), "#/properties/a/properties/b", "minItems"),
        (record(b={"oneOf": [DIGIT, {"type": "integer"}]}), "#/properties/b", "anyOf"),
        (nested(100), "#/properties/a", "levels"),
        ({"$ref": "#"}, "#", "no end"),
        (record(b=DIGIT, a={"$ref": "#"}), "#", "no end"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#", "no end"),
        ({"anyOf": [{"$ref": "#"}, {"allOf": [False]}]}, "#", "no end"),
        ({"type": "integer", "enum": ["a"]}, "", "cannot be enforced"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(schema: Any, place: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        begin(schema)
    assert place in str(caught.value)
    assert reason in str(caught.value)


def test_patterns_that_take_for_ever_together_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_trial, "_PROGRAM", schema_trial._PROGRAM.replace("(5, 5)", "(1, 1)"))
    schema = {"type": "string", "allOf": [{"pattern": f"^.*a.{{{length}}}b"} for length in range(3, 40)]}
    with pytest.raises(UsageError, match="together are too complex"):
        begin(schema)


def test_a_grammar_that_failed_is_not_a_whole_answer() -> None:
    constraint = begin(DIGIT)
    with pytest.raises(UsageError, match="too complex"):
        constraint.accept(ord("x"))
    for ask in (constraint.allowed_tokens, constraint.forced_tokens):
        with pytest.raises(UsageError, match="too complex"):
            ask()


def test_a_schema_is_json() -> None:
    with pytest.raises(UsageError, match="expected an object"):
        JsonForm(3)  # type: ignore[arg-type]
