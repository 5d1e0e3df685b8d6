"""Continues many prompts in one batch, several at a time. Usage: python batch.py [MODEL]."""

import sys

from treadle import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m"
countries = ["France", "Japan", "Kenya", "Peru", "Norway", "Egypt", "Canada", "India"]

with LLM(model) as llm:
    prompts = [f"The capital of {country} is" for country in countries]
    answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8, stop=[".", "\n"]))
    for country, answer in zip(countries, answers, strict=True):
        print(f"{country}: {answer.text.strip()}")
