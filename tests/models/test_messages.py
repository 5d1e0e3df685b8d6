"""Messages as clients send them, brought into one form or refused with their index."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.errors import UsageError
from treadle.models.messages import normalise_messages, normalise_tools


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def with_call(arguments: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call(arguments)]},
        {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c"},
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a", "a"),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (["a", {"type": "text", "text": "b"}], "ab"),
    ],
)
def test_content_becomes_text(content: Any, expected: str) -> None:
    assert normalise_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": expected}]


@pytest.mark.parametrize("message", [{"content": None}, {}])
def test_an_assistant_may_call_without_saying_anything(message: dict[str, Any]) -> None:
    (normal,) = normalise_messages([{"role": "assistant", "tool_calls": [call({})], **message}])
    assert normal["content"] == ""
    assert normal["tool_calls"] == [call({})]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city":"Köln","n":2}', {"city": "Köln", "n": 2}),
        ({"city": "Köln"}, {"city": "Köln"}),
        ("", {}),
        (" \n", {}),
        (None, {}),
    ],
)
def test_arguments_become_a_mapping(arguments: Any, expected: dict[str, Any]) -> None:
    assert normalise_messages(with_call(arguments))[1]["tool_calls"] == [call(expected)]


@pytest.mark.parametrize(
    "arguments", ["null", '{"city":', '{"a":1}{"a":1}', "[1]", '"text"', '{"a": NaN}', "[" * 100_000, 5, ["a"]]
)
def test_bad_arguments_name_the_message(arguments: Any) -> None:
    with pytest.raises(UsageError, match=r"the arguments of the call to 'f'") as caught:
        normalise_messages(with_call(arguments))
    assert caught.value.field == "messages[1].tool_calls[0].function.arguments"
    assert str(caught.value).startswith(f"{caught.value.field}: ")


def test_a_bare_function_call_gets_its_wrapping() -> None:
    message = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}
    (normal,) = normalise_messages([message])
    assert normal["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]


def test_developer_is_system_and_other_fields_stay() -> None:
    message = {"role": "developer", "content": "x", "name": "n"}
    assert normalise_messages([message]) == [{"role": "system", "content": "x", "name": "n"}]
    assert message["role"] == "developer"


def test_no_tool_calls_is_the_same_as_null() -> None:
    assert normalise_messages([{"role": "assistant", "content": "x", "tool_calls": None}]) == [
        {"role": "assistant", "content": "x"}
    ]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "expected at least one, found none"),
        ("hi", "messages: expected a list, found str"),
        ({"role": "user"}, "messages: expected a list, found dict"),
        (["hi"], r"messages\[0\]: expected a mapping, found str"),
        ([{"role": "foo", "content": "x"}], r"messages\[0\].role: expected .* found 'foo'"),
        ([{"content": "x"}], r"messages\[0\].role: expected .* found None"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\].role: expected"),
        ([{"role": "user"}], r"messages\[0\].content: a message of role user needs content"),
        ([{"role": "tool", "content": None}], r"messages\[0\].content: a message of role tool needs content"),
        (
            [{"role": "assistant", "contnet": "x"}],
            r"messages\[0\].content: an assistant that calls no tool needs content",
        ),
        ([{"role": "assistant", "tool_calls": []}], r"messages\[0\].content: an assistant that calls no tool needs"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content: .* found int"),
        ([{"role": "user", "content": {"type": "text", "text": "a"}}], r"messages\[0\].content: .* found dict"),
        (
            [{"role": "user", "content": ["a", {"type": "image_url", "image_url": {}}]}],
            r"messages\[0\].content\[1\]: .* text parts only.*'image_url'",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text: expected text"),
        ([{"role": "user", "content": [7]}], "text parts only.*'int'"),
        ([{"role": "user", "content": "", "name": 3}], r"messages\[0\].name: expected text, found 3"),
        ([{"role": "tool", "content": "", "tool_call_id": 3}], r"messages\[0\].tool_call_id: expected text, found 3"),
        ([{"role": "assistant", "refusal": 3}], r"messages\[0\].refusal: expected text, found 3"),
        ([{"role": "assistant", "content": None, "audio": {"id": "a"}}], r"messages\[0\].audio: .* text only"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], r"messages\[0\].function_call: .*send tool_calls"),
        ([{"role": "assistant", "content": "", "tool_calls": "f"}], r"\.tool_calls: expected a list"),
        ([{"role": "assistant", "tool_calls": [call({}), {}]}], r"tool_calls\[1\]: expected a function with a name"),
        ([{"role": "assistant", "tool_calls": ["f"]}], r"tool_calls\[0\]: expected a function with a name"),
        ([{"role": "assistant", "tool_calls": [{**call({}), "id": 3}]}], r"tool_calls\[0\].id: expected text, found 3"),
    ],
)
def test_what_no_template_could_show_is_refused(messages: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        normalise_messages(messages)
    assert str(caught.value).startswith(f"{caught.value.field}: ")


def test_a_refusal_is_what_the_assistant_said() -> None:
    for said in ({"refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}):
        (normal,) = normalise_messages([{"role": "assistant", "content": None, **said}])
        assert normal["content"] == "No."
    assert normalise_messages([{"role": "assistant", "reasoning_content": "hm"}])[0]["content"] == ""


def test_tools_are_a_list_of_mappings_or_none() -> None:
    assert normalise_tools(None) is None
    assert normalise_tools([]) is None
    assert normalise_tools([{"type": "function"}]) == [{"type": "function"}]
    for tools in ("f", {"type": "function"}, ["f"]):
        with pytest.raises(UsageError, match="tools"):
            normalise_tools(tools)  # type: ignore[arg-type]
