"""Times answers that must satisfy a schema beside free answers of as many tokens: what do forced tokens save?

Every round makes one answer of each kind, one after the other; the ratio is the median over these pairs.

With --seeds nothing is timed: for each of ten schemas the model answers with that many seeds at a high temperature,
eight answers at a time, and an independent validator looks at each. The status is 1 if one of them is not valid.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from statistics import median
from typing import Any

import jsonschema
from answer_schemas import SCHEMAS, record

from treadle import AsyncLLM, JsonForm, SamplingParams
from treadle.engine.completion import Completion

NUM_AT_ONCE = 8
PROMPT = [{"role": "user", "content": "Describe three people as JSON records."}]
DIGIT = {"type": "integer", "minimum": 0, "maximum": 99}


PERSON = record(
    identification_number=DIGIT,
    given_name={"type": "string", "maxLength": 12},
    date_of_birth=record(year_of_birth=DIGIT, month_of_birth=DIGIT, day_of_birth=DIGIT),
    is_registered_customer={"type": "boolean"},
    preferred_contact_method={"enum": ["electronic_mail", "telephone_call", "letter_by_post"]},
    number_of_previous_orders=DIGIT,
)
SCHEMA = record(registered_people={"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model file or name")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=None, help="check answers instead: how many for each schema")
    parser.add_argument("--temperature", type=float, default=1.5, help="of answers that are checked")
    parser.add_argument("--threads", type=int, default=None)
    return parser.parse_args()


async def answer(llm: AsyncLLM, params: SamplingParams) -> tuple[Completion, float]:
    """The answer to the prompt, with its seconds."""
    prompt = llm.chat_prompt(PROMPT)
    began = time.perf_counter()
    completion = None
    async for chunk in llm.generate(prompt, params):
        completion = chunk.completion
    assert completion is not None
    return completion, time.perf_counter() - began


async def measure(llm: AsyncLLM, num_rounds: int) -> None:
    ratios = []
    print("tokens  schema tok/s  free tok/s  ratio")
    for number in range(num_rounds + 1):
        shaped, shaped_seconds = await answer(llm, SamplingParams(max_tokens=600, seed=number, form=JsonForm(SCHEMA)))
        json.loads(shaped.text)
        num_tokens = len(shaped.token_ids)
        params = SamplingParams(max_tokens=num_tokens, seed=number, ignore_eos=True)
        free, free_seconds = await answer(llm, params)
        assert len(free.token_ids) == num_tokens
        if number == 0:
            continue  # compiles, fills caches
        ratios.append(free_seconds / shaped_seconds)
        speeds = f"{num_tokens / shaped_seconds:12.1f}  {num_tokens / free_seconds:10.1f}"
        print(f"{num_tokens:6}  {speeds}  {ratios[-1]:.2f}x")
    print(f"median of {num_rounds} rounds: {median(ratios):.2f}x, lowest {min(ratios):.2f}x")


async def fault(llm: AsyncLLM, schema: dict[str, Any], seed: int, temperature: float) -> str | None:
    """What is wrong with one answer, None if nothing is."""
    params = SamplingParams(max_tokens=600, seed=seed, temperature=temperature, form=JsonForm(schema))
    completion, _ = await answer(llm, params)
    if completion.finish_reason != "stop":
        return f"it ended with {completion.finish_reason}: {completion.text!r}"
    try:
        jsonschema.validate(json.loads(completion.text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{error}: {completion.text!r}"
    return None


async def check(llm: AsyncLLM, num_seeds: int, temperature: float) -> int:
    """How many answers are not valid."""
    slots = asyncio.Semaphore(NUM_AT_ONCE)
    num_done = num_wrong = 0

    async def one(number: int, schema: dict[str, Any], seed: int) -> None:
        nonlocal num_done, num_wrong
        async with slots:
            found = await fault(llm, schema, seed, temperature)
        num_done += 1
        if found is not None:
            num_wrong += 1
            print(f"schema {number}, seed {seed}: {found}")
        if sys.stderr.isatty():
            print(f"\r{num_done} answers, {num_wrong} not valid", end="", file=sys.stderr)

    work = [one(number, schema, seed) for number, schema in enumerate(SCHEMAS) for seed in range(num_seeds)]
    await asyncio.gather(*work)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(
        f"{num_done - num_wrong} of {num_done} answers valid: "
        f"{len(SCHEMAS)} schemas, {num_seeds} seeds each, temperature {temperature:g}"
    )
    return num_wrong


async def main() -> int:
    arguments = parse_arguments()
    async with await AsyncLLM.load(arguments.model, threads=arguments.threads, context=1024) as llm:
        if arguments.seeds is not None:
            return min(1, await check(llm, arguments.seeds, arguments.temperature))
        await measure(llm, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
