"""Tools made of functions: what the model is told, what the function gets, where it runs, how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import enum
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import function_tools
import jsonschema
import pytest
from pydantic import BaseModel, Field

from treadle.agents.function_tool import FunctionTool, tool
from treadle.agents.tool import Tool, ToolResult
from treadle.errors import ToolError, UsageError
from treadle.hardware.cpu_share import CpuShare


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclasses.dataclass
class Place:
    city: str
    floor: int = 0


class Order(BaseModel):
    title: str
    amounts: list[int] = []


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one whose end its parent has not noticed yet is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def call(made: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(made.call(arguments))


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    schema = dict(tool(function).spec.parameters)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def test_the_docstring_is_what_the_model_is_told() -> None:
    @tool
    def weather(city: str, days: int = 3) -> str:
        """Tell the weather
        of a city.

        It may be wrong.

        Args:
            city (str): Where: a city
                in English.
            days: How many days.

        Returns:
            The weather.
        """
        return ""

    assert weather.spec.name == "weather"
    assert weather.spec.description == "Tell the weather of a city.\n\nIt may be wrong."
    assert weather.spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where: a city in English."},
            "days": {"type": "integer", "default": 3, "description": "How many days."},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_parameters_of_every_kind_arrive_as_what_they_are() -> None:
    got: dict[str, Any] = {}

    def keep(  # noqa: PLR0917
        unit: Unit,
        place: Place,
        order: Order,
        day: datetime.date,
        mode: Literal["fast", "slow"] = "slow",
        tags: dict[str, int] = {},  # noqa: B006
        note: Optional[str] = None,  # noqa: UP045
        pair: tuple[int, str] = (1, "a"),
        level: Annotated[float, Field(ge=0, description="How much.")] = 1.0,
    ) -> str:
        got.update(locals())
        return "kept"

    schema = parameters(keep)
    assert schema["properties"]["level"] == {"type": "number", "minimum": 0, "default": 1.0, "description": "How much."}
    assert "title" in schema["$defs"]["Order"]["properties"]  # a property, while titles that repeat names are gone
    assert "title" not in schema["$defs"]["Order"]
    assert schema["$defs"]["Order"]["additionalProperties"] is False  # pydantic would drop what it does not know
    assert schema["properties"]["tags"]["additionalProperties"] == {"type": "integer"}
    arguments = {
        "unit": "k",
        "place": {"city": "Köln"},
        "order": {"title": "t", "amounts": [1]},
        "day": "2026-02-03",
        "pair": [2, "b"],
    }
    assert call(tool(keep), **arguments) == ToolResult("kept")
    assert {key: got[key] for key in ("unit", "place", "day", "mode", "tags", "note", "pair", "level")} == {
        "unit": Unit.KELVIN,
        "place": Place("Köln"),
        "day": datetime.date(2026, 2, 3),
        "mode": "slow",
        "tags": {},
        "note": None,
        "pair": (2, "b"),
        "level": 1.0,
    }
    assert got["order"] == Order(title="t", amounts=[1])


def test_names_that_no_model_field_may_have() -> None:
    def odd(schema: str, model_config: str, copy: str, _hidden: int, json: int = 1) -> str:
        return f"{schema} {model_config} {copy} {_hidden} {json}"

    assert list(parameters(odd)["properties"]) == ["schema", "model_config", "copy", "_hidden", "json"]
    assert call(tool(odd), schema="a", model_config="b", copy="c", _hidden=4).text == "a b c 4 1"


def test_what_only_the_type_knows_is_refused_by_it() -> None:
    def remember(day: datetime.date, code: Annotated[str, Field(pattern="^[a-z]+$")]) -> str:
        return f"{day} {code}"

    with pytest.raises(ToolError, match=r"day: .*; code: "):
        call(tool(remember), day="tomorrow", code="A1")


def no_annotation(city) -> None: ...  # type: ignore[no-untyped-def]
def star(*cities: str) -> None: ...
def stars(**cities: str) -> None: ...
def by_place(city: str, /) -> None: ...
def bad_default(city: str, sink: Any = object()) -> None: ...  # noqa: B008
def not_finite(share: float = float("nan")) -> None: ...
def no_json(sink: threading.Lock) -> None: ...
def unknown_type(city: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def drifted(city: str) -> None:
    """Do.

    Args:
        town: A town.
    """


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_annotation, r"tool no_annotation: 'city' has no annotation"),
        (star, r"\*cities takes anything"),
        (stars, r"\*\*cities takes anything"),
        (by_place, "'city' cannot be given by name"),
        (bad_default, "the default of 'sink' is not JSON"),
        (not_finite, "the default of 'share' is not JSON"),
        (no_json, "type that JSON cannot carry"),
        (unknown_type, "an annotation cannot be read: .*Nowhere"),
        (drifted, "describes 'town', which is no parameter"),
    ],
)
def test_a_bad_signature_is_one_clear_error(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        tool(function)


def test_a_name_that_no_api_takes() -> None:
    with pytest.raises(UsageError, match="expected a name"):
        tool(name="functions.add")(lambda: "x")


def test_settings_and_the_function_itself() -> None:
    @tool(name="sum-up", description="Sums.", is_read_only=True)
    def add(first: int, second: int) -> int:
        """Add."""
        return first + second

    assert (add.spec.name, add.spec.description, add.spec.is_read_only) == ("sum-up", "Sums.", True)
    assert add(1, 2) == 3
    assert isinstance(add, Tool)
    assert add.spec.definition()["function"]["name"] == "sum-up"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ({"ä": [1, None]}, '{"ä": [1, null]}'),
        (Place("x"), '{"city": "x", "floor": 0}'),
        (Order(title="t"), '{"title": "t", "amounts": []}'),
        ([Unit.KELVIN, datetime.date(2026, 1, 2)], '["k", "2026-01-02"]'),
        (None, "null"),
        (7, "7"),
    ],
)
def test_results_become_text(value: object, text: str) -> None:
    def give() -> Any:
        return value

    assert call(tool(give)) == ToolResult(text)


def test_a_result_that_is_no_json_is_a_tool_error() -> None:
    def give() -> Any:
        return object()

    with pytest.raises(ToolError, match="returned object"):
        call(tool(give))


def test_async_functions_run_in_the_loop_and_others_in_threads() -> None:
    where = contextvars.ContextVar("where", default="nowhere")

    async def inside() -> str:
        return f"{threading.current_thread() is threading.main_thread()} {where.get()}"

    def outside() -> str:
        return f"{threading.current_thread() is threading.main_thread()} {where.get()}"

    async def main() -> list[str]:
        where.set("here")
        return [(await tool(each).call({})).text for each in (inside, outside)]

    assert asyncio.run(main()) == ["True here", "False here"]


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), SystemExit("no")])
def test_whatever_a_thread_raises_reaches_the_caller_as_an_exception(error: BaseException) -> None:
    def fail() -> str:
        raise error

    with pytest.raises(Exception):  # noqa: B017  SystemExit is none, and would end the loop
        call(tool(fail))


def test_a_timeout_ends_a_call() -> None:
    @tool(timeout=0.01)
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    with pytest.raises(ToolError, match=r"ended after 0.01 seconds"):
        call(wait)


def test_processes_answer_and_stay_warm() -> None:
    async def main() -> list[ToolResult]:
        try:
            results = [
                await function_tools.add.call({"first": 2, "second": 3}),
                await function_tools.add.call({"first": 4, "second": 5}),
            ]
            return [*results, await function_tools.own_pid.call({}), await function_tools.own_pid.call({})]
        finally:
            await function_tools.add.close()
            await function_tools.own_pid.close()

    first, second, pid, same_pid = asyncio.run(main())
    assert (first.text, second.text) == ("5", "9")
    assert pid == same_pid
    assert not is_running(int(pid.text))


def process_tool(made: FunctionTool, gate: Any = None) -> FunctionTool:
    """The tool with processes of its own, as every agent has it."""
    return made.with_gate(gate or NarrowGate(CpuShare()))


class NarrowGate:
    def __init__(self, share: CpuShare) -> None:
        self.share = share
        self.entered: list[tuple[str, str]] = []

    @asynccontextmanager
    async def enter(self, work: str, name: str) -> AsyncIterator[CpuShare]:
        self.entered.append((work, name))
        yield self.share


def in_process(made: FunctionTool, *calls: dict[str, Any], gate: Any = None) -> list[Any]:
    async def main() -> list[Any]:
        own = process_tool(made, gate)
        try:
            return [await asyncio.gather(own.call(each), return_exceptions=True) for each in calls]
        finally:
            await own.close()

    return [result for (result,) in asyncio.run(main())]


def test_the_gate_tells_the_cpus_of_a_process() -> None:
    one = frozenset({min(os.sched_getaffinity(0))})
    gate = NarrowGate(CpuShare(cpus=one))
    assert in_process(function_tools.cpus, {}, gate=gate) == [ToolResult(str(sorted(one)))]
    assert gate.entered == [("cpu", "cpus")]


def test_what_goes_wrong_in_a_process_is_told() -> None:
    assert in_process(function_tools.refuse, {"reason": "not today"}) == [ToolResult("not today", is_error=True)]
    died, again = in_process(function_tools.die, {"code": 3}, {"code": 4})
    assert str(died) == "the process of the tool died with exit code 3"
    assert str(again) == "the process of the tool died with exit code 4"


def test_a_flood_stays_in_its_process() -> None:
    (result,) = in_process(function_tools.flood, {"chars": 5_000_000})
    assert len(result.text) < 2**20 + 200
    assert "characters left out" in result.text


def test_cancelling_kills_the_process_and_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def main() -> None:
        own = process_tool(function_tools.sleep_with_child)
        task = asyncio.ensure_future(own.call({"path": str(pids)}))
        while not pids.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await own.close()

    asyncio.run(main())
    for pid in map(int, pids.read_text().split()):
        assert not is_running(pid)


def nested() -> Callable[[], str]:
    def inner() -> str:
        return "x"

    return inner


async def coroutine() -> str:
    return "x"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (nested(), "another process cannot find it"),
        (lambda: "x", "another process cannot find it"),
        (coroutine, "runs in the event loop"),
    ],
)
def test_functions_that_no_process_can_run(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        tool(name="x", in_process=True)(function)
