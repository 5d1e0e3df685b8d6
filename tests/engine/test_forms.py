"""Answers with a form, from Python: as data in the sampling parameters, and conversations with tools as data."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.engine.async_llm import AsyncLLM
from treadle.engine.completion import CompletionChunk
from treadle.engine.conversation import Conversation
from treadle.engine.llm import LLM
from treadle.engine.sampling import SamplingParams
from treadle.engine.structured.form import AnswerForm, ChoiceForm, JsonForm, RegexForm
from treadle.errors import UsageError
from treadle.models.tool_dialects import ToolCall

QUESTION = [{"role": "user", "content": "Is the sky blue?"}]
PING = {
    "type": "function",
    "function": {
        "name": "ping",
        "parameters": {
            "type": "object",
            "properties": {"times": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["times"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, context=512) as loaded:
        yield loaded


@pytest.mark.model
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (ChoiceForm(["yes", "no / maybe", 'a "quoted" one']), r'yes|no / maybe|a "quoted" one'),
        (RegexForm(r"[0-9]{2}/[0-9]{2}\/20[0-9]{2}"), r"\d\d/\d\d/20\d\d"),
        (RegexForm("[ab]\n[cd]"), "[ab]\n[cd]"),
        (JsonForm({"enum": [1, 22, 333]}), "1|22|333"),
    ],
)
def test_an_answer_has_its_form(llm: LLM, form: AnswerForm, pattern: str) -> None:
    for seed in range(3):
        params = SamplingParams(temperature=2, seed=seed, max_tokens=40, form=form)
        for answer in (llm.generate("Question: ", params), llm.chat(QUESTION, params)):
            assert re.fullmatch(pattern, answer.text), answer.text
            assert answer.finish_reason == "stop"


@pytest.mark.model
def test_what_cannot_be_is_refused(llm: LLM) -> None:
    with pytest.raises(UsageError, match="cannot be enforced"):
        llm.generate("a", SamplingParams(form=RegexForm("(unclosed")))
    with pytest.raises(UsageError, match="either a form or a constraint"):
        llm.generate("a", SamplingParams(form=RegexForm("a")), constraint=lambda: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "make",
    [
        lambda: JsonForm("text"),  # type: ignore[arg-type]
        lambda: JsonForm(False),
        lambda: JsonForm({"enum": [{1, 2}]}),
        lambda: RegexForm(""),
        lambda: ChoiceForm([]),
        lambda: ChoiceForm("abc"),
        lambda: ChoiceForm(["a", ""]),
        lambda: ChoiceForm(["a"] * 1025),
        lambda: SamplingParams(form="json"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_form_is_refused_at_once(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.model
def test_a_conversation_is_answered_in_parts(smollm2_path: Path) -> None:
    async def ask() -> list[CompletionChunk]:
        conversation = Conversation(QUESTION, tools=[PING], choice="required", is_parallel=False)
        async with await AsyncLLM.load(smollm2_path, context=512) as llm:
            stream = await llm.answer(conversation, SamplingParams(temperature=0, max_tokens=100, logprobs=0))
            assert stream.prompt_tokens == len(await llm.tokenize(conversation))
            return [chunk async for chunk in stream]

    chunks = asyncio.run(ask())
    [call] = [part for chunk in chunks for part in chunk.parts]
    assert isinstance(call, ToolCall)
    assert call.name == "ping"
    assert 1 <= json.loads(call.arguments)["times"] <= 9
    last = chunks[-1].completion
    assert last is not None
    assert last.answer_tokens == len(last.token_ids) == sum(chunk.num_tokens for chunk in chunks)
    assert b"".join(entry.token_bytes for entry in last.logprobs or ()).decode() == last.text


@pytest.mark.model
def test_a_known_beginning_of_a_call_is_no_part_of_the_prompt(smollm2_path: Path) -> None:
    async def ask() -> None:
        async with await AsyncLLM.load(smollm2_path, context=512) as llm:
            for length in range(16):  # wherever the last block of the prompt ends
                messages = [{"role": "user", "content": "a " * length}]
                conversation = Conversation(messages, tools=[PING], choice="required")
                for _ in range(2):
                    stream = await llm.answer(conversation, SamplingParams(temperature=0, max_tokens=30))
                    async for _ in stream:
                        pass
                assert 0 < stream.cached_tokens <= stream.prompt_tokens

    asyncio.run(ask())
