"""Answers questions about a table with SQL and Python. Usage: python csv_analyst.py [MODEL [TABLE QUESTION...]]

Without a table it asks three questions about sales.csv beside this file.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from shutil import copy

from treadle import Agent, AsyncLLM, CallBegan, RunEnded
from treadle.agents.sandbox import Sandbox
from treadle.agents.tools.code import python_tool
from treadle.agents.tools.query import query_tools
from treadle.agents.tools.workspace import Workspace

QUESTIONS = [
    "Which region has the largest total amount?",
    "How many units of the product lamp were sold in all?",
    "What is the average amount of a row, rounded to two digits?",
]


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "qwen2.5-coder:1.5b"
    table = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("sales.csv")
    questions = sys.argv[3:] or QUESTIONS
    with tempfile.TemporaryDirectory() as folder:
        copy(table, folder)  # code of the model sees this copy and nothing else
        workspace, sandbox = Workspace(folder), await Sandbox.open(workspace=Path(folder), is_writable=False)
        llm = await AsyncLLM.load(model, context=8192)
        try:
            agent = Agent(llm, [*query_tools(workspace), python_tool(sandbox)], forces_calls=True)
            for question in questions:
                await ask(agent, f"The table is in the file {table.name}. {question}")
        finally:
            await llm.close()
            await sandbox.close()
            workspace.close()


async def ask(agent: Agent, task: str) -> None:
    print(task)
    async for event in agent.stream(task):
        if isinstance(event, CallBegan):
            print(f"  {event.name}: {' '.join(str(value) for value in event.arguments.values())}")
        elif isinstance(event, RunEnded):
            print(f"  = {event.result.answer.strip() or event.result.error} ({event.result.usage.seconds:.1f} s)")


if __name__ == "__main__":
    asyncio.run(main())
