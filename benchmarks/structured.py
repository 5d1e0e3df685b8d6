"""Times answers that must satisfy a schema beside free answers of as many tokens: what do forced tokens save?

Every round makes one answer of each kind, one after the other; the ratio is the median over these pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from statistics import median
from typing import Any

from treadle import AsyncLLM, JsonForm, SamplingParams
from treadle.engine.completion import Completion

PROMPT = [{"role": "user", "content": "Describe three people as JSON records."}]
DIGIT = {"type": "integer", "minimum": 0, "maximum": 99}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


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


async def main() -> None:
    arguments = parse_arguments()
    async with await AsyncLLM.load(arguments.model, threads=arguments.threads, context=1024) as llm:
        await measure(llm, arguments.rounds)


if __name__ == "__main__":
    asyncio.run(main())
