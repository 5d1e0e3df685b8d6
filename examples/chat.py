"""Holds a conversation and prints the answers as they come. Usage: python chat.py [MODEL]; an empty line ends it."""

import sys

from treadle import LLM, ChatMessage, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m"
messages: list[ChatMessage] = [{"role": "system", "content": "You answer in one short sentence."}]

with LLM(model) as llm:
    while text := sys.stdin.readline().strip():
        messages.append({"role": "user", "content": text})
        answer = ""
        for chunk in llm.stream(messages, SamplingParams(temperature=0, max_tokens=64)):
            print(chunk.text, end="", flush=True)
            answer += chunk.text
        print()
        messages.append({"role": "assistant", "content": answer})
