"""Asks a model one question. Usage: python generate.py [MODEL]."""

import sys

from treadle import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m"

with LLM(model) as llm:
    question = [{"role": "user", "content": "Name the capital of Japan."}]
    answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=32))
    print(answer.text)
    print(f"{answer.prompt_tokens} tokens read, {len(answer.token_ids)} written, ended by {answer.finish_reason}")
