"""Conversations become prompts, grammars and parsers: here for templates in which every answer has an envelope."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tiny_vocabularies import CONTROL, byte_pair
from treadle.engine.conversation import Conversation
from treadle.engine.prepare import prepare_conversation
from treadle.engine.prompt import PromptReader
from treadle.engine.structured.form import JsonForm
from treadle.engine.structured.grammar import GrammarConstraint, Grammars
from treadle.errors import UsageError
from treadle.models.chat_template import ChatTemplate
from treadle.models.tokenizer import Tokenizer
from treadle.models.tool_dialects import Content, Reasoning, ToolCall

TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}{% endfor %}
{%- for message in messages %}
{{- '<|start|>' + message.role + ('<|channel|>analysis' if message.thinking else '') + '<|message|>' }}
{{- message.thinking or message.content }}<|end|>{% endfor %}<|start|>assistant"""
CONTROLS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
NOW = {"type": "function", "function": {"name": "now"}}
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": {}}}
QUESTION = [{"role": "user", "content": "When?"}]
BEGUN = {"role": "assistant", "content": "It is"}
OPENING = "<|channel|>final<|message|>"


def reader() -> tuple[Tokenizer, PromptReader]:
    metadata = byte_pair(*((text, CONTROL) for text in CONTROLS), eos_token_id=265)
    tokenizer = Tokenizer.from_metadata(metadata)
    return tokenizer, PromptReader("m", tokenizer, ChatTemplate(TEMPLATE, tokenizer.vocabulary), context=4096)


@pytest.mark.parametrize("tools", [[], [NOW]])
def test_a_free_answer_is_taken_out_of_its_envelope(tools: list[Any]) -> None:
    tokenizer, prompts = reader()
    prompt, rules = prepare_conversation(prompts, Conversation(QUESTION, tools=tools), None)
    assert rules is None
    assert prompt.text.endswith("<|start|>assistant")
    assert tokenizer.vocabulary.control["<|channel|>"] in prompt.shown_ids
    assert prompt.parser is not None
    parser = prompt.parser()
    answer = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{OPENING}Now."
    assert [*parser.push(answer), *parser.finish()] == [Reasoning("Hm."), Content("Now.")]


def test_what_has_a_form_begins_inside_the_envelope() -> None:
    tokenizer, prompts = reader()
    forced = Conversation(QUESTION, tools=[NOW], choice="required")
    prompt, rules = prepare_conversation(prompts, forced, None)
    assert rules is not None
    assert prompt.text.endswith(f"<|start|>assistant{OPENING}")
    assert prompt.token_ids[-1] == tokenizer.vocabulary.control["<|message|>"]
    assert prompt.parser is not None
    parser = prompt.parser()
    assert [*parser.push('{"name": "now", "arguments": {}}'), *parser.finish()] == [ToolCall("now", "{}")]
    prompt, rules = prepare_conversation(prompts, Conversation(QUESTION, tools=[NOW]), JsonForm())
    assert rules is not None
    assert prompt.parser is not None
    parser = prompt.parser()
    assert [*parser.push('{"name": "now", "arguments": {}}'), *parser.finish()] == [ToolCall("now", "{}")]


def test_thoughts_before_a_call_are_shown_to_the_template() -> None:
    _, prompts = reader()
    call = {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c", "content": "noon"}
    prompt, _ = prepare_conversation(prompts, Conversation([*QUESTION, call, result]), None)
    assert "<|channel|>analysis<|message|>I look.<|end|>" in prompt.text


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [({"type": "string"}, "type object"), ({"properties": {"a": {"not": {}}}}, "#/properties/a/not")],
)
def test_arguments_that_cannot_be_enforced(parameters: dict[str, Any], reason: str) -> None:
    _, prompts = reader()
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(UsageError, match="'f'") as caught:
        prepare_conversation(prompts, Conversation(QUESTION, tools=[tool], choice="required"), None)
    assert reason in str(caught.value)


HERMES = """{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}
{%- for message in messages %}{{ message.content }}{% endfor %}"""


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("It is noon. 1 < 2", True),
        ('I ask.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', True),
        (
            '<tool_call>\n{"name": "now", "arguments": {"zone": "x"}}\n</tool_call>\nand\n<tool_call>\n{"name": "add"',
            True,
        ),
        ('<tool_call>\n{"name": "add", "arguments": {}}', False),
        ('<tool_call>\n{"name": "add", "arguments": {"a": "1"}}', False),
        ('<tool_call>\n{"name": "other"', False),
    ],
)
def test_strict_functions_are_enforced_inside_free_text(answer: str, is_right: bool) -> None:
    tokenizer, prompts = hermes_reader()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    add = {"type": "function", "function": {"name": "add", "parameters": schema}}
    strict = {"type": "function", "function": {**add["function"], "strict": True}}
    assert prepare_conversation(prompts, Conversation(QUESTION, tools=[NOW, add]), None)[1] is None
    prompt, rules = prepare_conversation(prompts, Conversation(QUESTION, tools=[NOW, strict]), None)
    assert rules is not None
    assert prompt.parser is not None
    constraint = Grammars(tokenizer).compile(rules).constraint()
    allowed = [allows(constraint, token_id) for token_id in tokenizer.encode(answer, add_bos=False)]
    assert all(allowed) == is_right


ADD = {"type": "function", "function": {"name": "add", "strict": True}}


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("It is noon.", True),
        ('<tool_call>\n{"name": "now", "arguments": {"zone": "x"}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "add"', False),
    ],
)
def test_only_some_functions_may_be_called_amid_text(answer: str, is_right: bool) -> None:
    tokenizer, prompts = hermes_reader()
    some = Conversation(QUESTION, tools=[NOW, ADD], functions=("now",))
    prompt, rules = prepare_conversation(prompts, some, None)
    assert rules is not None
    assert prompt.text == "<tool_call>now<tool_call>addWhen?"  # the same as when all may be called
    constraint = Grammars(tokenizer).compile(rules).constraint()
    assert all(allows(constraint, token_id) for token_id in tokenizer.encode(answer, add_bos=False)) == is_right


def test_a_model_is_told_only_of_what_it_may_call_where_no_grammar_keeps_it_from_the_rest() -> None:
    _, prompts = reader()
    some = Conversation(QUESTION, tools=[NOW, ADD], functions=("add",))
    prompt, rules = prepare_conversation(prompts, some, None)
    assert rules is None
    assert prompt.text.startswith("add: <|start|>")
    prompt, rules = prepare_conversation(prompts, dataclasses.replace(some, choice="required"), None)
    assert rules is not None
    assert prompt.text.startswith("now: add: <|start|>")
    assert '"const": "now"' not in rules.text


@pytest.mark.parametrize(
    ("conversation", "form", "reason"),
    [
        (Conversation(QUESTION, [NOW], functions=("add",)), None, "no 'add' among the tools"),
        (Conversation(QUESTION, [], "required"), None, "at least one tool"),
        (Conversation(QUESTION, variables={"tools": []}), None, "'tools' cannot be set"),
        (Conversation(QUESTION, variables={"continues": True}), None, "'continues' cannot be set"),
        (Conversation(QUESTION, continues=True), None, "a last message of the assistant"),
        (Conversation([*QUESTION, {"role": "assistant", "tool_calls": [CALL]}], continues=True), None, "calls nothing"),
        (Conversation([*QUESTION, BEGUN], continues=True), JsonForm(), "cannot be held to a form"),
        (Conversation([*QUESTION, BEGUN], [NOW], "required", continues=True), None, "cannot be held to a form"),
    ],
)
def test_what_contradicts_itself(conversation: Conversation, form: JsonForm | None, reason: str) -> None:
    _, prompts = hermes_reader()
    with pytest.raises(UsageError, match=reason):
        prepare_conversation(prompts, conversation, form)


def test_an_answer_goes_on_inside_its_envelope() -> None:
    tokenizer, prompts = reader()
    prompt, rules = prepare_conversation(prompts, Conversation([*QUESTION, BEGUN], continues=True), None)
    assert rules is None
    assert prompt.text.endswith("<|start|>assistant<|message|>It is")
    assert tokenizer.vocabulary.control["<|message|>"] in prompt.token_ids
    assert prompt.parser is not None
    parser = prompt.parser()
    assert [*parser.push(" noon. to=x"), *parser.finish()] == [Content(" noon. to=x")]


@pytest.mark.parametrize(
    ("begun", "parts"),
    [
        ("<think>Hm", [Reasoning(" ... yes."), Content("It is noon.")]),
        ("<think>Hm</think>It", [Content(" ... yes.</think>It is noon.")]),
    ],
)
def test_an_answer_goes_on_amid_reasoning(begun: str, parts: list[Any]) -> None:
    tokenizer = Tokenizer.from_metadata(byte_pair(("<end>", CONTROL), eos_token_id=256))
    source = "{% for message in messages %}{{ message.content | trim }}{% endfor %}</think>"
    prompts = PromptReader("m", tokenizer, ChatTemplate(source, tokenizer.vocabulary), context=4096)
    messages = [*QUESTION, {"role": "assistant", "content": begun}]
    prompt, _ = prepare_conversation(prompts, Conversation(messages, continues=True), None)
    assert prompt.text == f"When?{begun}"
    assert prompt.parser is not None
    parser = prompt.parser()
    assert [*parser.push(" ... yes.</think>It is noon."), *parser.finish()] == parts


def hermes_reader() -> tuple[Tokenizer, PromptReader]:
    tokenizer = Tokenizer.from_metadata(byte_pair(("<end>", CONTROL), eos_token_id=256))
    return tokenizer, PromptReader("m", tokenizer, ChatTemplate(HERMES, tokenizer.vocabulary), context=4096)


def allows(constraint: GrammarConstraint, token_id: int) -> bool:
    """Tell whether a token may come, and take it in if so."""
    is_allowed = bool(constraint.allowed_tokens()[token_id // 32] >> np.uint32(token_id % 32) & 1)
    if is_allowed:
        constraint.accept(token_id)
    return is_allowed
