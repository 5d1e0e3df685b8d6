"""Chat templates: the language they may use, checked against Jinja set up as transformers does, and their errors."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tiny_vocabularies import byte_pair, chat_markup
from treadle.errors import ModelFileError, TemplateError, UsageError
from treadle.models.chat_template import ChatTemplate
from treadle.models.tokenizer import Tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <now> & 'later'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "n": 2}}}
PLAIN = [{"role": "user", "content": "Hello é—<&>/'"}]
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " hi there "}]
TOOLS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"temp": 3}', "name": "get_weather", "tool_call_id": "c1"},
    {"role": "user", "content": "And tomorrow?"},
]
PREFILL = [*PLAIN, {"role": "assistant", "content": "<think>\nhm\n</think>\nSure, "}]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def template(source: str, **keys: Any) -> ChatTemplate:
    found = ChatTemplate.from_metadata({**chat_markup(**keys), "tokenizer.chat_template": source})
    assert found is not None
    return found


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    return str(template(source).render(PLAIN if messages is None else messages, **variables))


def as_transformers_renders(source: str, **variables: Any) -> str:
    """Plain Jinja with the settings and additions of transformers."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment.from_string(source).render(bos_token="<|endoftext|>", eos_token="<|im_end|>", **variables)


LANGUAGE = {
    "blocks are trimmed": "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "whitespace control": "{%- for m in messages -%}\n  {{- m.role }}  \n{%- endfor -%} x",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "continue": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "reverse slices": "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{{ messages[-1:][0].role }}{{ 'abc'[1:] }}",
    "string methods": "{{ ' a-b '.strip().split('-')[-1] }}{{ 'xx'.rstrip('x') }}{{ 'ab'.startswith('a') }}"
    "{{ 'a'.upper() ~ ','.join(['b', 'c']) }}{{ '{} {n}'.format(1, n='é') }}{{ '%s|%5d' % ('a', 3) }}",
    "thoughts are cut": "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endfor %}",
    "filters": "{{ messages|map(attribute='role')|join('+') }}{{ messages|selectattr('role', 'equalto', 'user')|list"
    "|length }}{{ 'a b'|title|replace(' ', '_')|indent(2, true)|trim }}{{ [3, 1]|sort|first }}{{ x|default('d') }}"
    "{{ messages[0]|items|list|length }}{{ {'b': 1}|dictsort }}{{ 'ab'|center(6) }}{{ [1, 2, 3]|batch(2)|list }}",
    "tests": "{{ tools is none }}{{ x is defined }}{{ messages is iterable and messages is not string }}"
    "{{ messages[0] is mapping }}{{ 3 is odd }}{{ 'a' in ['a'] }}{{ 1 is sameas(1) }}",
    "macros": "{% macro f(x, n=2) %}{{ x * n }}{% if n > 1 %}{{ f(x, n - 1) }}{% endif %}{% endmacro %}{{ f('ab') }}",
    "call blocks": "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ messages[0].role }}{% endcall %}",
    "set blocks": "{% set text %}{{ messages|length }} messages{% endset %}{{ text|upper }}",
    "loop variables": "{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.previtem is defined }}{% endfor %}",
    "filtered loops": "{% for m in messages if m.role != 'user' %}{{ m.role }}{% else %}none{% endfor %}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ 1.5 * 2 }}{{ -3 }}{{ 10 / 4 }}{{ 'a' * 3 }}{{ [1] * 2 }}",
    "none and undefined": "{{ none }}{{ missing }}{{ messages[0].missing }}",
    "tools": "{% if tools %}{% for tool in tools %}{{ tool|tojson }}{{ tool.function.name }}{% endfor %}{% endif %}",
    "tool calls": "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson }};{% endfor %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("history", [PLAIN, SYSTEM, TOOLS, PREFILL], ids=["plain", "system", "tools", "prefill"])
@pytest.mark.parametrize("source", LANGUAGE.values(), ids=LANGUAGE.keys())
def test_language_renders_as_in_transformers(source: str, history: list[dict[str, Any]]) -> None:
    tools = [WEATHER] if history is TOOLS else None
    variables = {"messages": history, "tools": tools, "add_generation_prompt": False}
    expected = as_transformers_renders(source, **variables)
    assert render(source, history, tools=tools, add_generation_prompt=False) == expected


JSON_OPTIONS: list[dict[str, Any]] = [
    {},
    {"ensure_ascii": False},
    {"ensure_ascii": True},
    {"sort_keys": True},
    {"separators": (",", ":")},
    {"indent": 2},
    {"indent": 4, "sort_keys": True, "ensure_ascii": True},
]


@pytest.mark.parametrize("options", JSON_OPTIONS, ids=str)
def test_tojson_is_json_dumps(options: dict[str, Any]) -> None:
    value = {"b": 1.0, "a": [1, 2, None, True], "u": "é—<&>/'\"\n😀", "e": {}}
    arguments = ", ".join(f"{key}={option!r}" for key, option in options.items())
    expected = json.dumps(value, **{"ensure_ascii": False, **options})
    assert render(f"{{{{ x|tojson({arguments}) }}}}", x=value) == expected


def test_tojson_has_the_defaults_of_transformers() -> None:
    rendered = render("{{ x|tojson }}", x={"b": 1.0, "a": [1, 2], "u": "é—<&>/'"})
    assert rendered == '{"b": 1.0, "a": [1, 2], "u": "é—<&>/\'"}'


def test_generation_marks_change_nothing() -> None:
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_the_clock_is_readable() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_own_variables_reach_the_template_and_others_are_refused() -> None:
    assert render("{{ enable_thinking }}{{ guard }}{{ self }}", enable_thinking=False, guard=1).startswith("False1")
    for name in ("chat_template", "bos_token", "messages"):
        with pytest.raises(UsageError, match=f"'{name}' cannot be set by a request"):
            template("x").render(PLAIN, **{name: "{{ 7*7 }}"})


def test_values_nested_without_end_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"properties": deep}
    for value in (endless, deep):
        with pytest.raises(UsageError, match="nested too deeply"):
            render(CHATML, tools=[{"type": "function", "function": value}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ raise_exception('Roles must alternate') }}", "line 2: Roles must alternate"),
        ("a\nb\n{{ 1 / 0 }}", "line 3: ZeroDivisionError: division by zero"),
        ("{{ missing.name }}", "line 1: 'missing' is undefined"),
        ("\n\n\n{% macro f() %}\n{{ x.y }}{% endmacro %}{{ f() }}", "line 5: 'x' is undefined"),
        ("{% include 'other' %}", "line 1: TypeError: no loader"),
    ],
)
def test_rendering_errors_give_the_message_and_the_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=f"chat template, {message}"):
        render(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "line 2: Expected an expression"),
        ("{% unknown %}", "line 1: Encountered unknown tag"),
        ("{{ 'x'|striptags }}", "line 1: No filter named 'striptags'"),
        ("{{ " + "(" * 3000 + ")" * 3000 + " }}", ": too deep or large to compile"),
        ("x" * (1 << 20), "expected at most 524288 characters"),
    ],
)
def test_broken_templates_are_refused_when_read(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        template(source)


ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\n"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["system", "user"], "line 1: System role not supported"),
        (["developer", "user"], "line 1: System role not supported"),
        (["user", "user"], "line 2: Roles must alternate"),
        (["assistant", "user"], "line 2: Roles must alternate"),
    ],
)
def test_roles_a_template_refuses_carry_its_own_message(roles: list[str], message: str) -> None:
    with pytest.raises(TemplateError, match=f"chat template, {message}"):
        render(ALTERNATING, [{"role": role, "content": "x"} for role in roles])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "tool", "content": [{"type": "text", "text": "ab"}], "tool_call_id": "c1"},
    ],
)
def test_missing_content_and_parts_never_show_as_none_or_json(message: dict[str, Any]) -> None:
    rendered = render(CHATML, [*PLAIN, message], add_generation_prompt=False)
    assert rendered.endswith("\n<|im_end|>\n" if message["role"] == "assistant" else "\nab<|im_end|>\n")


def test_a_model_without_a_template_has_none() -> None:
    assert ChatTemplate.from_metadata(chat_markup()) is None


def test_a_template_that_is_no_text_is_a_broken_file() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template: expected text, found int"):
        ChatTemplate.from_metadata({**chat_markup(), "tokenizer.chat_template": 3})


def test_bos_is_there_once_whether_template_or_tokenizer_adds_it() -> None:
    for source, keys in [
        ("{{ bos_token }}hi", {"add_bos_token": True}),
        ("hi", {"add_bos_token": True}),
        ("{{ bos_token }}hi", {"add_bos_token": False}),
    ]:
        tokenizer = Tokenizer.from_metadata(chat_markup(**keys))
        assert tokenizer.encode_prompt(template(source, **keys).render(PLAIN)) == [260, ord("h"), ord("i")]


def test_template_and_tokenizer_can_share_one_vocabulary() -> None:
    metadata = {**byte_pair(), "tokenizer.chat_template": CHATML}
    vocabulary = Tokenizer.from_metadata(metadata).vocabulary
    shared = ChatTemplate.from_metadata(metadata, vocabulary)
    assert shared is not None
    assert "user\nHello" in str(shared.render(PLAIN))


def test_a_second_template_for_tools_takes_over_when_there_are_tools() -> None:
    sources = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "{{ tools[0].function.name }}"}
    found = ChatTemplate.from_metadata({**chat_markup(), **sources})
    assert found is not None
    assert str(found.render(PLAIN)) == "plain"
    assert str(found.render(PLAIN, tools=[])) == "plain"
    assert str(found.render(PLAIN, tools=[WEATHER])) == "get_weather"


def test_a_template_for_parts_gets_parts() -> None:
    source = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    assert render(source) == f"[{PLAIN[0]['content']}]"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("{{ c.function.arguments|tojson }}", '{"city": "Köln", "n": 2}'),
        ("{{ '```json\n' + c.function.arguments + '```' }}", '```json\n{"city": "Köln", "n": 2}```'),
        ("{{ c.function.arguments }}", '{"city": "Köln", "n": 2}'),
        (
            "{% if c.function.arguments is string %}{{ c.function.arguments }}"
            "{% else %}{{ c.function.arguments|tojson }}{% endif %}",
            '{"city": "Köln", "n": 2}',
        ),
    ],
)
def test_arguments_are_shown_once_and_unescaped_by_templates_of_each_kind(shown: str, expected: str) -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}" + shown + "{% endfor %}{% endfor %}"
    assert render(source, TOOLS) == expected


PARTS = CHATML.replace("message.content +", "message.content[0].text +")


@pytest.mark.parametrize("source", [CHATML, PARTS, CHATML.replace("message.content", "message.content | trim")])
@pytest.mark.parametrize("begun", ["Sure, ", "<|im_en", ""])
def test_a_prompt_may_end_within_the_last_message(source: str, begun: str) -> None:
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]
    rendered = template(source).render(history, continues=True)
    assert str(rendered) == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{begun}"
    assert str(template(source).render(history)).endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "source",
    [
        "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}{{ message.content }} {{ message.content }}{% endfor %}",
    ],
)
def test_a_template_that_hides_where_the_last_message_ends(source: str) -> None:
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure, "}]
    with pytest.raises(UsageError, match="can be gone on with"):
        template(source).render(history, continues=True)


def test_only_a_last_message_of_the_assistant_can_be_gone_on_with() -> None:
    with pytest.raises(UsageError, match=r"messages\[0\]: an answer can go on with"):
        template(CHATML).render(PLAIN, continues=True)
    with pytest.raises(UsageError, match="calls nothing"):
        template(CHATML).render(TOOLS[:2], continues=True)
