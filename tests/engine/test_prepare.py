"""Conversations become prompts, grammars and parsers: here for templates in which every answer has an envelope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiny_vocabularies import CONTROL, byte_pair
from treadle.engine.conversation import Conversation
from treadle.engine.form import JsonForm
from treadle.engine.grammar import GrammarConstraint, Grammars
from treadle.engine.prepare import prepare_conversation
from treadle.engine.prompt import PromptReader
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
    tokenizer = Tokenizer.from_metadata(byte_pair(("<end>", CONTROL), eos_token_id=256))
    prompts = PromptReader("m", tokenizer, ChatTemplate(HERMES, tokenizer.vocabulary), context=4096)
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


def allows(constraint: GrammarConstraint, token_id: int) -> bool:
    """Tell whether a token may come, and take it in if so."""
    is_allowed = bool(constraint.allowed_tokens()[token_id // 32] >> np.uint32(token_id % 32) & 1)
    if is_allowed:
        constraint.accept(token_id)
    return is_allowed
