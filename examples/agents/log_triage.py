"""Reads a log and says what is wrong, as JSON of a fixed form. Usage: python log_triage.py [MODEL [LOG]]

Without a log it takes service.log beside this file.
"""

import asyncio
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from treadle import Agent, AsyncLLM, tool

MAX_LINES = 20


class Triage(BaseModel):
    """What somebody who is called at night wants to know first."""

    severity: Literal["critical", "warning", "info"] = Field(description="Critical if users are affected.")
    component: str = Field(description="What failed first: the name before the colon in its line.", max_length=40)
    cause: str = Field(description="Why it failed, in one sentence.", max_length=200)
    evidence: str = Field(description="The line of the log that shows it, copied.", max_length=200)


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "qwen2.5-coder:1.5b"
    log = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("service.log")
    lines = log.read_text(errors="replace").splitlines()

    @tool(is_read_only=True)
    def lines_before(number: int) -> str:
        """Show the ten lines of the log before a line.

        Args:
            number: The number of the line.
        """
        return numbered(lines, range(max(0, number - 11), min(number - 1, len(lines))))

    wrong = [index for index, line in enumerate(lines) if "ERROR" in line or "WARN" in line]
    task = (
        f"These lines of a log tell of trouble:\n\n{numbered(lines, wrong[:MAX_LINES])}\n\nWhat failed first, and why?"
    )
    llm = await AsyncLLM.load(model, context=8192)
    try:
        result = await Agent(llm, [lines_before], answer_schema=Triage, forces_calls=True).run(task)
    finally:
        await llm.close()
    if result.data is None:
        sys.exit(f"no answer: {result.error or result.end}")
    print(result.data.model_dump_json(indent=2))


def numbered(lines: list[str], chosen: "range | list[int]") -> str:
    return "\n".join(f"{index + 1}: {lines[index]}" for index in chosen)


if __name__ == "__main__":
    asyncio.run(main())
