"""Mends a program whose test fails. Usage: python fix_test.py [MODEL [FOLDER]]

Without a folder it takes `broken` beside this file. It works on a copy, runs the tests in a sandbox with Python's own
unittest, and shows what it changed.
"""

import ast
import asyncio
import difflib
import sys
import tempfile
from pathlib import Path
from shutil import copytree

from treadle import Agent, AsyncLLM, Budget, CallBegan, CallEnded, RunEnded, ToolError, tool
from treadle.agents.sandbox import Outcome, Sandbox

RUN_TESTS = "import unittest; unittest.main(module=None, argv=['tests', 'discover', '-q'])"
TASK = """The tests of this program fail:

{failure}
This is the program:

{program}
Give the function that is wrong anew, mended, with replace_function. Repeat that until the tests pass."""


class Project:
    """A folder with programs and tests; programs are changed function by function, which small models do best."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder = folder
        self._sandbox = sandbox

    @property
    def programs(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("*.py")) if not path.name.startswith("test")]

    async def test(self) -> Outcome:
        return await self._sandbox.run_python(RUN_TESTS)

    async def replace_function(self, code: str) -> str:
        r"""Replace a function of the program by another of the same name, and run the tests.

        Args:
            code: The function in Python, such as "def half(x):\n    return x / 2".
        """
        try:
            functions = [each for each in ast.parse(code).body if isinstance(each, ast.FunctionDef)]
        except SyntaxError as error:
            raise ToolError(f"the code is no Python: {error}") from None
        if not functions:
            raise ToolError("expected the code of a function")
        for function in functions:
            self._replace(function.name, ast.unparse(function))
        outcome = await self.test()
        return "All tests pass." if outcome.exit_code == 0 else f"Still wrong:\n{outcome.stderr.text}"

    def _replace(self, name: str, code: str) -> None:
        for path in self.programs:
            text = path.read_text()
            for old in ast.parse(text).body:
                if isinstance(old, ast.FunctionDef) and old.name == name:
                    lines = text.splitlines()
                    lines[old.lineno - 1 : old.end_lineno] = code.splitlines()
                    path.write_text("\n".join(lines) + "\n")
                    return
        raise ToolError(f"the program has no function {name}")


async def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "qwen2.5-coder:1.5b"
    original = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("broken")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(copytree(original, Path(scratch, "project")))
        sandbox, llm = await Sandbox.open(workspace=folder), await AsyncLLM.load(model, context=8192)
        try:
            project = Project(folder, sandbox)
            await mend(llm, project)
            outcome = await project.test()
        finally:
            await llm.close()
            await sandbox.close()
        show_change(original, project.programs)
    print("the tests pass" if outcome.exit_code == 0 else f"the tests still fail:\n{outcome.stderr.text}")
    return outcome.exit_code or 0


async def mend(llm: AsyncLLM, project: Project) -> None:
    failure = (await project.test()).stderr.text
    task = TASK.format(failure=failure, program="\n".join(path.read_text() for path in project.programs))
    agent = Agent(llm, [tool(project.replace_function)], budget=Budget(max_turns=6), forces_calls=True)
    async for event in agent.stream(task):
        if isinstance(event, CallBegan):
            print(f"{event.name}:\n{event.arguments['code']}")
        elif isinstance(event, CallEnded):
            print(f"  {event.text.splitlines()[0]}")
        elif isinstance(event, RunEnded):
            print(f"{event.result.answer or event.result.error} ({event.result.usage.seconds:.1f} s)")


def show_change(original: Path, programs: list[Path]) -> None:
    for path in programs:
        before, after = (each.read_text().splitlines() for each in (original / path.name, path))
        print("\n".join(difflib.unified_diff(before, after, f"before/{path.name}", f"after/{path.name}", lineterm="")))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
