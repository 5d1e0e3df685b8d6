"""Arguments of calls: the same in another spelling is taken, everything else is refused, nothing is lost or invented."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.arguments import canonical, read_arguments, usage_of
from treadle.agents.coercion import fit
from treadle.agents.tool import ToolSpec
from treadle.errors import ToolError


def spec(required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return ToolSpec("f", "Does.", schema)


CITY = spec(("city",), city={"type": "string"})


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, " -3 ", -3),
        ({"type": "integer"}, 3.0, 3),
        ({"type": "integer"}, "12345678901234567890", 12345678901234567890),
        ({"type": "number"}, "3.5", 3.5),
        ({"type": "number"}, "1.50", 1.5),
        ({"type": "number"}, 3, 3),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "string"}, 42, "42"),
        ({"type": "string"}, "42", "42"),
        ({"type": "null"}, "null", None),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
        ({"type": ["integer", "null"]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", "7"),  # fits as it is
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, 2, "2"),
        ({"const": True}, "true", True),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "3", 3),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, "3", 3),
        ({}, "3", "3"),
        ({"type": "string", "enum": ["a"], "description": "x"}, "a", "a"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, ["1", 2], [1, "2"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"any": "3"}, {"any": 3}),
    ],
)
def test_other_spellings_of_the_same(schema: dict[str, Any], value: Any, expected: Any) -> None:
    found, problems = fit(value, schema)
    assert (found, problems) == (expected, [])
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "integer"}, 3.7, "expected an integer, found 3.7"),
        ({"type": "integer"}, "3.7", 'expected an integer, found "3.7"'),
        ({"type": "integer"}, "007", "expected an integer"),
        ({"type": "integer"}, True, "expected an integer, found true"),
        ({"type": "integer"}, 1e300, "expected an integer"),
        ({"type": "integer"}, None, "expected an integer, found null"),
        ({"type": "number"}, "0.1000000000000000055511151231257827", "expected a number"),
        ({"type": "number"}, float("inf"), "expected a number"),
        ({"type": "number"}, "NaN", "expected a number"),
        ({"type": "boolean"}, 1, "expected true or false, found 1"),
        ({"type": "boolean"}, "yes", 'expected true or false, found "yes"'),
        ({"type": "string"}, 1.10, "expected a string, found 1.1"),
        ({"type": "string"}, True, "expected a string"),
        ({"type": "string"}, {"a": 1}, 'expected a string, found {"a": 1}'),
        ({"type": "array"}, "a", "expected a list"),
        ({"type": "array", "items": {"type": "integer"}}, [1, "x"], r"[1]: expected an integer"),
        ({"type": "object"}, [1], "expected an object"),
        ({"type": "object"}, '{"a": 1, "a": 2}', "expected an object"),
        ({"enum": ["celsius", "kelvin"]}, "Celsius", 'one of "celsius", "kelvin", found "Celsius"'),
        ({"const": 1}, True, "one of 1, found true"),
        ({"type": "string", "minLength": 2}, "a", "expected at least 2 characters, found 1"),
        ({"type": "array", "maxItems": 1}, [1, 2], "expected at most 1 items, found 2"),
        ({"type": "integer", "minimum": 2}, "1", "expected at least 2, found 1"),
        ({"type": "number", "exclusiveMaximum": 2}, 2, "expected less than 2"),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "x", "expected an integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}, {"type": "null"}]}, "[", "or"),
        (False, 1, "expected nothing that could fit"),
        ({"$ref": "#/properties/x"}, 1, "expected a simpler value"),
    ],
)
def test_what_would_lose_or_guess_is_refused(schema: Any, value: Any, problem: str) -> None:
    _, problems = fit({"x": value}, {"properties": {"x": schema}})
    assert len(problems) == 1
    assert problem in problems[0]


def test_a_value_that_two_schemas_read_differently_is_refused() -> None:
    lists = {"anyOf": [{"type": "array", "items": {"type": kind}} for kind in ("string", "integer")]}
    assert fit(["1", "2"], lists) == (["1", "2"], [])
    assert fit([1, "2"], lists) == ([1, "2"], ["the arguments: can be meant in more than one way"])
    assert fit("1.0", {"type": ["integer", "number"]}) == (1, [])


def test_missing_and_unknown_arguments_are_named() -> None:
    with pytest.raises(ToolError) as caught:
        read_arguments('{"town": "x"}', CITY)
    assert str(caught.value) == (
        "city: is required and missing; town: is unknown, expected only: city. f takes city (string, required)"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r'{"city": "\d+"}', r"not JSON: Invalid \\escape.*a backslash is written"),
        (r'{"city": "C:\path"}', "not JSON: Invalid"),
        (r'{"city": "\u12"}', "not JSON: Invalid"),
        ("", "the arguments are missing; required: city"),
        ("null", "the arguments are missing; required: city"),
        ('[{"city": "x"}]', "expected an object with their names as keys"),
        ('{"city": "x"}{"city": "x"}', "not JSON: Extra data"),
        ('{"city": "x",}', "not JSON"),
        ('{"city": "x"', "not JSON"),
        ('{"city": "x", "city": "y"}', "a name occurs twice"),
        ('{"city": NaN}', "NaN is no JSON value"),
        ('"x"', "expected an object"),
        ("{" * 100_000, "not JSON"),
    ],
)
def test_texts_that_are_no_arguments(text: str, problem: str) -> None:
    """Field case I01: a call is never made with less than what was written."""
    with pytest.raises(ToolError, match=problem) as caught:
        read_arguments(text, CITY)
    assert len(str(caught.value)) < 600


def test_texts_that_mean_what_they_say() -> None:
    assert read_arguments('{"city": "C:\\new"}', CITY) == {"city": "C:\new"}
    assert read_arguments('{"city": "a\nb\tc"}', CITY) == {"city": "a\nb\tc"}  # raw control characters
    assert read_arguments("", spec(city={"type": "string"})) == {}
    assert read_arguments("null", spec()) == {}


def test_defaults_are_not_filled_in() -> None:
    assert read_arguments("{}", spec(days={"type": "integer", "default": 3})) == {}


def test_problems_are_bounded() -> None:
    value = {f"key{index}": "x" * 10_000 for index in range(100)}
    found, problems = fit(value, {"type": "object", "additionalProperties": {"type": "integer"}})
    assert found == value
    assert len(problems) == 5
    assert all(len(each) < 200 for each in problems)


def test_usage_names_kinds() -> None:
    made = spec(
        ("a",),
        a={"type": "integer"},
        b={"enum": ["x", "y"]},
        c={"anyOf": [{"type": "string"}, {"type": "null"}]},
        d={"$ref": "#/$defs/D"},
        e={},
    )
    assert (
        usage_of(made)
        == 'f takes a (integer, required), b (one of "x", "y"), c (string or null), d (object), e (anything)'
    )


def test_canonical_form() -> None:
    assert canonical("f", '{"b": 1,  "a": {"d": 2, "c": 3}}') == canonical("f", {"a": {"c": 3, "d": 2}, "b": 1})
    assert canonical("f", '{"a": 1}') != canonical("g", '{"a": 1}')
    assert canonical("f", "{broken") == "f {broken"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
SCHEMAS = st.recursive(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array", "object")])
    | st.lists(st.integers(0, 3) | st.sampled_from(["1", "2", "true"]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2).map(lambda each: {"anyOf": each})
        | inner.map(lambda each: {"type": "array", "items": each})
        | inner.map(lambda each: {"type": "object", "properties": {"a": each}, "additionalProperties": False})
    ),
    max_leaves=4,
)


@given(JSON, SCHEMAS)
def test_what_is_taken_satisfies_the_schema_and_what_satisfies_it_stays(value: Any, schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    found, problems = fit(value, schema)
    if not problems:
        assert validator.is_valid(found)
    if validator.is_valid(value) and not _is_whole_float(value):
        assert problems == []
        assert json.dumps(found) == json.dumps(value)  # which tells true from 1


def _is_whole_float(value: Any) -> bool:
    """Whether there is a float in it that an integer may stand for, or one so large that it could be several."""
    if isinstance(value, dict):
        return any(map(_is_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(_is_whole_float, value))
    return isinstance(value, float) and value.is_integer()
