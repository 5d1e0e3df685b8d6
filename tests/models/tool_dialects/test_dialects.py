"""Every dialect: calls are read, cuts do not matter, and what is no call stays as the model wrote it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.models.tool_dialects import Content, Part, Reasoning, ToolCall, find_dialect
from treadle.models.tool_dialects.dialect import DIALECTS, Dialect
from treadle.models.tool_dialects.fenced import explain_tools

TOOLS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "now": {"type": "object", "properties": {}},
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "tags": {"type": "array"}}},
}
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}

PARIS_AND_ROME = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>{"name":"get_weather","arguments":{"city":"Rome"}}</tool_call>',
    "qwen-xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call>",
    "harmony": " to=functions.get_weather<|channel|>commentary json<|message|>"
    '{"city": "Paris"}<|call|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json'
    '<|message|>{"city": "Rome"}<|call|>',
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n"
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
    "granite": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
    '{"name": "get_weather", "arguments": {"city": "Rome"}}]',
    "phi": '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}<|/tool_call|>'
    '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]<|/tool_call|>',
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
    '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
    "function-gemma": "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"
    "<start_function_call>call:get_weather{city:<escape>Rome<escape>}<end_function_call>",
    "pythonic": '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>\n'
    "<|tool_call_start|>[get_weather(city='Rome')]<|tool_call_end|>",
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
    '{"name": "get_weather", "arguments": {"city": "Rome"}}]',
    "llama": '{"name": "get_weather", "parameters": {"city": "Paris"}}; '
    '{"name": "get_weather", "parameters": {"city": "Rome"}}',
    "fenced": '```tool_call\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```\n\n'
    '```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```',
}


def read(dialect: Dialect, *pieces: str) -> list[Part]:
    """All parts of an answer, with neighbouring content joined."""
    parser = dialect.parser(TOOLS)
    parts: list[Part] = []
    for part in [*(part for piece in pieces for part in parser.push(piece)), *parser.finish()]:
        if parts and not isinstance(part, ToolCall) and type(part) is type(parts[-1]):
            parts[-1] = type(part)(parts[-1].text + part.text)
        else:
            parts.append(part)
    return parts


@pytest.mark.parametrize("name", BY_NAME)
def test_two_calls_whatever_the_cuts(name):
    text = PARIS_AND_ROME[name]
    expected = [ToolCall("get_weather", '{"city": "Paris"}'), ToolCall("get_weather", '{"city": "Rome"}')]
    assert read(BY_NAME[name], text) == expected
    assert read(BY_NAME[name], *text) == expected
    for cut in range(1, len(text)):
        assert read(BY_NAME[name], text[:cut], text[cut:]) == expected


@pytest.mark.parametrize("name", BY_NAME)
def test_a_cut_answer_is_never_completed(name):
    text = PARIS_AND_ROME[name]
    for length in range(len(text)):
        parts = read(BY_NAME[name], text[:length])
        calls = [part for part in parts if isinstance(part, ToolCall)]
        assert (
            calls
            == [ToolCall("get_weather", '{"city": "Paris"}'), ToolCall("get_weather", '{"city": "Rome"}')][: len(calls)]
        )
        if not calls:  # nothing of the answer is lost
            assert parts == ([Content(text[:length])] if length else [])


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("text", ["Hello, world.\n\n  Bye. ", "a < b, [1] {x} ```py\nprint()\n``` <tool", "", " \n"])
def test_plain_answers_stay_as_they_are(name, text):
    assert read(BY_NAME[name], *text) == ([Content(text)] if text else [])


@pytest.mark.parametrize("name", ["hermes", "qwen-xml", "glm", "phi", "gemma", "function-gemma", "pythonic", "fenced"])
def test_text_around_calls(name):
    call = PARIS_AND_ROME[name]
    expected = [
        Content("Let me see."),
        ToolCall("get_weather", '{"city": "Paris"}'),
        ToolCall("get_weather", '{"city": "Rome"}'),
        Content("Done. "),
    ]
    assert read(BY_NAME[name], *f"Let me see.\n{call}\n\nDone. ") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (r'{"p": "C:\new"}', {"p": "C:\new"}),
        ('{"t": "a\nb\tc"}', {"t": "a\nb\tc"}),
        (r'"{\"x\": 1}"', {"x": 1}),
        ('{"city": "Köln 😀"}', {"city": "Köln 😀"}),
        ("{}", {}),
        ("null", {}),
        ('""', {}),
    ],
)
def test_readable_arguments(arguments, expected):
    [call] = read(BY_NAME["hermes"], f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>')
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            '[add(a=3, tags=["x", \'y\', None, True, -1.5e3, {"k": (1, 2)}])]',
            [{"a": 3, "tags": ["x", "y", None, True, -1500.0, {"k": [1, 2]}]}],
        ),
        (r'[get_weather(city="\ud83d\ude00")]', [{"city": "😀"}]),
        ("add( a = 1 ,tags=[ ] )", [{"a": 1, "tags": []}]),
        (r"""[get_weather(city='It\'s "K\u00f6ln\\" \n😀')]""", [{"city": 'It\'s "Köln\\" \n😀'}]),
        ('[get_weather(city="a, b) ]"), now(), now( )]', [{"city": "a, b) ]"}, {}, {}]),
        ('[{"name": "get_weather", "arguments": {"city": "Paris"}}]', [{"city": "Paris"}]),
        ('{"name": "now", "arguments": {}}', [{}]),
    ],
)
def test_python_calls(body, expected):
    parts = read(BY_NAME["pythonic"], f"<|tool_call_start|>{body}<|tool_call_end|>")
    assert [json.loads(part.arguments) for part in parts if isinstance(part, ToolCall)] == expected
    assert len(parts) == len(expected)


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "",
        "[get_weather]",
        '[get_weather("Paris")]',
        '[get_weather(city="Paris"]',
        '[get_weather(city="Paris")',
        'get_weather(city="Paris")]',
        '[get_weather(city="Paris", city="Rome")]',
        "[get_weather(city=Paris)]",
        '[get_weather(city="Paris") now()]',
        r'[get_weather(city="\d")]',
        "[add(a=nan)]",
        "[add(a=9e999)]",
        r'[get_weather(city="\ud83d")]',
        "1",
        '[1, "now"]',
        "[add(a=__import__('os'))]",
        f"[add(tags={'[' * 40}{']' * 40})]",
        f"[add(tags={'[' * 100_000})]",
    ],
    ids=lambda body: body[:40],
)
def test_what_is_no_python_call_stays_text(body):
    text = f"<|tool_call_start|>{body}<|tool_call_end|>"
    assert read(BY_NAME["pythonic"], text) == [Content(text)]


@pytest.mark.parametrize(
    "arguments",
    [
        r'{"re": "\d+"}',
        r'{"p": "C:\path"}',
        r'{"u": "\u12"}',
        '[{"city": "x"}]',
        '{"city": "x"}{"city": "x"}',
        '{"city": "x",}',
        "NaN",
        '"half',
        "null",
        '""',
        '{"city": "x", "city": "y"}',
    ],
)
def test_arguments_that_cannot_be_read_stay_text(arguments):
    text = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'
    assert read(BY_NAME["hermes"], text) == [Content(text)]


def test_parameters_is_another_word_for_arguments():
    text = '<tool_call>{"name": "get_weather", "parameters": {"city": "x"}}</tool_call>'
    assert read(BY_NAME["hermes"], text) == [ToolCall("get_weather", '{"city": "x"}')]


def test_a_closing_marker_inside_an_argument_is_text():
    arguments = '{"city": "</tool_call> \\" </tool_call>"}'
    text = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'
    expected = [ToolCall("get_weather", arguments)]
    assert read(BY_NAME["hermes"], text) == expected
    assert read(BY_NAME["hermes"], *text) == expected


@pytest.mark.parametrize("name", ["llama", "fenced"])
def test_json_that_calls_nothing_offered_is_an_answer(name):
    text = '{"name": "Ada", "arguments": {"born": 1815}}'
    text = f"```json\n{text}\n```" if name == "fenced" else text
    assert read(BY_NAME[name], *text) == [Content(text)]


# What answers are made of when they go wrong: whole calls, pieces of them, markers anywhere, awkward characters.
_MARKERS = (
    "<tool_call>", "</tool_call>", "<function=now>", "</function>", "<parameter=city>", "</parameter>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call|>", "<|/tool_call|>", "<|tool_call>", "<tool_call|>",
    '<|"|>', "call:now{}", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```tool_call\n", "```json\n", "\n```", "```",
    "<|channel|>", "analysis", "final", "commentary to=functions.now", "<|message|>", "<|end|>", "<|start|>assistant",
    "<|call|>", " to=", "<think>", "</think>", '{"name": "now", "arguments": {}}', '{"a": "}{]\\" </tool_call>"}',
    "{", "}", '"', "\\", "[", "]", "; ", " ", "\n", "é😀", "\u0301", "text",
)  # fmt: skip
_PIECES = st.lists(st.sampled_from((*_MARKERS, *PARIS_AND_ROME.values())), max_size=8)


@pytest.mark.parametrize("name", BY_NAME)
@given(pieces=_PIECES, places=st.lists(st.integers(0, 400), max_size=6))
def test_no_cut_changes_what_is_read(name: str, pieces: list[str], places: list[int]) -> None:
    text = "".join(pieces)
    expected = read(BY_NAME[name], text)
    assert read(BY_NAME[name], *text) == expected
    cuts = [0, *sorted(place for place in places if place <= len(text)), len(text)]
    assert read(BY_NAME[name], *(text[start:end] for start, end in itertools.pairwise(cuts))) == expected
    for part in expected:
        if isinstance(part, ToolCall):
            assert isinstance(json.loads(part.arguments), dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Think < here.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
            [Reasoning("Think < here."), Content("Hi.")],
        ),
        ("<|channel|>commentary<|message|>I look.<|end|>", [Content("I look.")]),
        ("Plain <|text.", [Content("Plain <|text.")]),
        (" to=nobody", [Content(" to=nobody")]),
        ("<|channel|>anal", []),
        ("<|channel|>analysis<|message|>cut off", [Reasoning("cut off")]),
        ("<|channel|>commentary to=functions.now<|message|>", [Content("<|channel|>commentary to=functions.now<|message|>")]),
        ("<|channel|>commentary to=functions.now<|message|>{}", [ToolCall("now", "{}")]),
        ("<|channel|>commentary to=functions.now<|message|><|call|>", [ToolCall("now", "{}")]),
        ("<|channel|>commentary to=python<|message|>1+1<|call|>", [Content("<|channel|>commentary to=python<|message|>1+1")]),
    ],
)  # fmt: skip
def test_harmony_messages(text: str, expected: list[Part]) -> None:
    assert read(BY_NAME["harmony"], text) == expected
    assert read(BY_NAME["harmony"], *text) == expected


@pytest.mark.parametrize("mark", ["<|channel|>", "<|start|>", " to="])
@pytest.mark.parametrize("before", ["", "<|channel|>final<|message|>so<|end|>"])
def test_a_mark_of_harmony_that_begins_no_header_is_text(mark: str, before: str) -> None:
    text = mark + "x" * 300
    told = "so" + text.lstrip() if before else text
    for pieces in ([before + text], before + text):
        assert read(BY_NAME["harmony"], *pieces) == [Content(told)]
        assert read(BY_NAME["harmony"], *pieces, "<|channel|>final<|message|>end") == [Content(told + "end")]


def test_harmony_calls_nothing_where_nothing_was_offered() -> None:
    text = "<|channel|>commentary to=functions.now<|message|>{}<|call|>"
    parser: Any = BY_NAME["harmony"].parser({})
    assert [type(part) for part in [*parser.push(text), *parser.finish()]] == [Content]


def test_glm_values_have_the_types_of_the_schema() -> None:
    text = "<tool_call>add<arg_key>a</arg_key><arg_value>3</arg_value><arg_key>tags</arg_key>\n<arg_value>[1]</arg_value></tool_call>"
    assert read(BY_NAME["glm"], text) == [ToolCall("add", '{"a": 3, "tags": [1]}')]
    twice = "<tool_call>add<arg_key>a</arg_key><arg_value>3</arg_value><arg_key>a</arg_key><arg_value>4</arg_value></tool_call>"
    assert read(BY_NAME["glm"], twice) == [Content(twice)]


def test_mistral_with_names_before_arguments():
    text = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]a1[ARGS]{}'
    assert read(BY_NAME["mistral"], *text) == [ToolCall("get_weather", '{"city": "Paris"}'), ToolCall("now", "{}")]


def test_gemma_values_of_every_kind():
    text = '<|tool_call>call:add{a: 3,tags:[<|"|>x, }<|"|>, -1.5,true,null,{k:<|"|><|"|>}]}<tool_call|>'
    [call] = read(BY_NAME["gemma"], *text)
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": 3, "tags": ["x, }", -1.5, True, None, {"k": ""}]}


NUMBER_CALLS = {
    "gemma": "<|tool_call>call:add{a:@}<tool_call|>",
    "function-gemma": "<start_function_call>call:add{a:@}<end_function_call>",
    "pythonic": "<|tool_call_start|>[add(a=@)]<|tool_call_end|>",
}


@pytest.mark.parametrize("name", NUMBER_CALLS)
def test_numbers_have_any_number_of_digits_that_can_be_read(name: str) -> None:
    beyond_floats, beyond_reading = "7" * 400, "7" * 5000
    call, unread = (NUMBER_CALLS[name].replace("@", digits) for digits in (beyond_floats, beyond_reading))
    assert read(BY_NAME[name], call) == [ToolCall("add", f'{{"a": {beyond_floats}}}')]
    assert read(BY_NAME[name], unread) == [Content(unread)]


def test_gemma_nested_without_end_is_content():
    text = "<|tool_call>call:add{a:" + "[" * 500 + "]" * 500 + "}<tool_call|>"
    assert read(BY_NAME["gemma"], text) == [Content(text)]


def test_qwen_xml_values_have_the_types_of_the_schema():
    text = (
        "<tool_call><function=add><parameter=a>3</parameter><parameter=tags>\n[1]\n</parameter></function></tool_call>"
    )
    assert read(BY_NAME["qwen-xml"], text) == [ToolCall("add", '{"a": 3, "tags": [1]}')]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ('… <tool_call>\n{"name": … </tool_call>', "hermes"),
        ("<tool_call>\n<function=example>", "qwen-xml"),
        ("<tool_call>{name}\n<arg_key>{key}</arg_key>", "glm"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("<|tool_call|>", "granite"),
        ("<|tool_call|>{}<|/tool_call|>", "phi"),
        ("{{ '<|tool_call>call:' }}", "gemma"),
        ("<start_function_call>", "function-gemma"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|start_header_id|>ipython<|end_header_id|>", "llama"),
        ("{{ message.content }}", "fenced"),
    ],
)
def test_the_template_tells_the_dialect(template, name):
    assert find_dialect(template).name == name


def test_tools_are_explained_where_the_template_knows_none():
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": {}}}],
        },
        {"role": "tool", "content": "noon", "tool_call_id": "call_1"},
    ]
    system, user, call, result = explain_tools(messages, [{"type": "function", "function": {"name": "now"}}])
    assert system["role"] == "system"
    assert '{"name": "now"}' in system["content"]
    assert user == messages[0]
    assert read(BY_NAME["fenced"], call["content"]) == [ToolCall("now", "{}")]
    assert result == {"role": "user", "content": "Result of call_1:\nnoon"}


WITHOUT_TAGS = {
    "bare": '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    "bare, two": ' {"name": "now", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "Paris"}}',
    "fenced": '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}\n```',
    "fenced after text": 'I look.\n```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
}


@pytest.mark.parametrize("text", WITHOUT_TAGS.values(), ids=WITHOUT_TAGS.keys())
def test_qwen_calls_without_tags(text: str) -> None:
    parts = read(BY_NAME["hermes"], text)
    assert parts[-1] == ToolCall("get_weather", '{"city": "Paris"}')
    assert read(BY_NAME["hermes"], *text) == parts
    for cut in range(1, len(text)):
        assert read(BY_NAME["hermes"], text[:cut], text[cut:]) == parts
        assert parts[-1] not in read(BY_NAME["hermes"], text[:cut])
    # Where a grammar tells calls from text, what has no tags is text.
    parser = BY_NAME["hermes"].forced_parser(TOOLS)
    assert "".join(part.text for part in [*parser.push(text), *parser.finish()] if isinstance(part, Content)) == text


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "other", "arguments": {}}',
        '{"name": "get_weather"}',
        '{"city": "Paris"}',
        'So: {"name": "now", "arguments": {}}',
        '```json\n{"name": "other", "arguments": {}}\n```',
        '```python\n{"name": "now", "arguments": {}}\n```',
    ],
)
def test_what_has_no_tags_and_is_no_call_is_text(text: str) -> None:
    assert read(BY_NAME["hermes"], text) == [Content(text)]


@pytest.mark.parametrize("name", ["hermes", "llama"])
def test_json_that_is_no_call_is_not_held_back(name: str) -> None:
    parser = BY_NAME[name].parser(TOOLS)
    assert parser.push('{"n') == []
    assert parser.push('ame_of_city": "Pa') == [Content('{"name_of_city": "Pa')]
