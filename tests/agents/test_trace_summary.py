"""What spans add up to: shares, coverage and critical path of tasks whose times are given."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import MS, add, agent_trace, new_trace
from treadle.agents.trace import Trace, critical_path, summarise
from treadle.agents.trace.spans import KINDS
from treadle.agents.trace.time_shares import share_time


def path_of(trace: Trace) -> list[tuple[str, int, int]]:
    steps = critical_path(trace.root, trace.spans)
    return [(step.span.name, step.start_ns // MS, step.end_ns // MS) for step in steps]


def test_the_summary_of_an_agent() -> None:
    summary = agent_trace().summary()
    assert summary.num_tasks == 1 and summary.task_seconds == (2.0,)
    # From 420 to 520 the tool `fetch` runs beside the wait for cores, so each has a half.
    assert summary.groups == pytest.approx({"model": 0.88, "tools": 1.01, "waiting": 0.05, "own": 0.06})
    assert sum(summary.groups.values()) == pytest.approx(summary.wall_seconds)
    assert summary.share("model") == pytest.approx(0.44)
    wall = {kind: time.wall_seconds for kind, time in summary.kinds.items()}
    assert wall == pytest.approx(
        {
            "sandbox": 0.94 - 0.09,  # 520 to 700 beside `fetch`
            "decode": 0.53,
            "prefill": 0.3,
            "queue": 0.05,
            "network": 0.13,
            "wait": 0.05,
            "tool": 0.02 + 0.01,
            "parse": 0.01,
            "dispatch": 0.01,
            "turn": 0.03,
            "task": 0.01,
            "model": 0.0,
        }
    )
    assert summary.coverage == pytest.approx(0.98)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.answer_tokens) == (250, 180, 50)
    assert list(summary.tools) == ["run_python", "fetch"]
    slow, quick = summary.tools.values()
    assert (slow.num_calls, slow.num_errors, slow.wall_seconds) == (1, 0, 1.06)
    assert slow.cpu_seconds == pytest.approx(0.91)
    assert (quick.num_errors, quick.cpu_seconds) == (1, None)
    assert summary.kinds["sandbox"].cpu_seconds == 0.9 and summary.kinds["decode"].cpu_seconds is None


def test_many_tasks_add_up() -> None:
    one, many = agent_trace().summary(), summarise([agent_trace(), agent_trace(), new_trace(500)])
    assert many.num_tasks == 3 and many.wall_seconds == pytest.approx(4.5) and many.median_seconds == 2.0
    assert many.groups["model"] == pytest.approx(2 * one.groups["model"])
    assert many.groups["own"] == pytest.approx(2 * one.groups["own"] + 0.5)
    assert many.tools["fetch"].num_calls == 2 and many.cached_tokens == 360
    assert many.kinds["task"].num_spans == 3


def test_no_tasks_add_up_to_nothing() -> None:
    summary = summarise([])
    assert (summary.num_tasks, summary.wall_seconds, summary.median_seconds, summary.coverage) == (0, 0.0, 0.0, 1.0)
    assert summary.share("model") == 0.0


@pytest.mark.parametrize("num_parallel", [1, 2, 5])
def test_a_task_made_of_tools_for_four_fifths_is_reported_so(num_parallel: int) -> None:
    trace = new_trace(10_000)
    for begin in range(0, 10_000, 1000):
        turn = add(trace, "turn", begin, begin + 1000)
        add(turn, "model", begin, begin + 190)
        for index in range(num_parallel):  # the longest decides
            add(turn, "tool", begin + 195, begin + 995 - 50 * index)
    summary = trace.summary()
    assert 0.77 <= summary.share("tools") <= 0.83
    assert summary.coverage >= 0.97


def test_time_without_a_span_is_not_covered() -> None:
    trace = new_trace(1000)
    turn = add(trace, "turn", 0, 900)
    add(turn, "tool", 0, 500, "a")
    add(turn, "tool", 300, 700, "b")  # 300 to 500 counts once
    assert trace.summary().coverage == pytest.approx(0.7)
    assert trace.summary().groups["own"] == pytest.approx(0.3)


def test_network_belongs_to_what_needs_it() -> None:
    trace = new_trace(1000)
    add(add(trace, "model", 0, 100), "network", 0, 100)
    add(add(add(trace, "tool", 100, 300), "network", 100, 300), "network", 100, 300)
    add(trace, "network", 300, 600)
    groups = trace.summary().groups
    assert groups == pytest.approx({"model": 0.1, "tools": 0.2, "waiting": 0.0, "own": 0.7})


def test_the_critical_path_of_an_agent() -> None:
    assert path_of(agent_trace()) == [
        ("queue", 0, 50),
        ("prefill", 50, 250),
        ("decode", 250, 400),
        ("parse", 400, 410),
        ("dispatch", 410, 420),
        ("cores", 420, 520),
        ("python", 520, 1460),
        ("run_python", 1460, 1480),
        ("1", 1480, 1500),
        ("prefill", 1500, 1600),
        ("decode", 1600, 1980),
        ("2", 1980, 1990),
        ("task", 1990, 2000),
    ]
    shares = agent_trace().summary().path
    assert [(share.name, share.num_spans) for share in shares[:2]] == [("python", 1), ("decode", 2)]
    assert sum(share.wall_seconds for share in shares) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("spans", "path"),
    [
        ([("a", 0, 100), ("b", 20, 80)], [("a", 0, 100)]),
        ([("a", 0, 60), ("b", 40, 100)], [("a", 0, 40), ("b", 40, 100)]),
        ([("a", 0, 100), ("b", 50, 100)], [("a", 0, 100)]),
        ([("a", 10, 30), ("b", 50, 90)], [("task", 0, 10), ("a", 10, 30), ("task", 30, 50), ("b", 50, 90), ("task", 90, 100)]),
        ([("late", 90, 150), ("a", 0, 95)], [("a", 0, 90), ("late", 90, 100)]),
        ([("after", 120, 150)], [("task", 0, 100)]),
        ([("empty", 50, 50)], [("task", 50, 100), ("task", 0, 50)][::-1]),
        ([], [("task", 0, 100)]),
    ],
)  # fmt: skip
def test_the_critical_path_takes_the_longest_of_what_ran_together(
    spans: list[tuple[str, int, int]], path: list[tuple[str, int, int]]
) -> None:
    trace = new_trace(100)
    for name, start, end in spans:
        add(trace, "tool", start, end, name)
    assert path_of(trace) == path


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any spans within any others, also ones that reach beyond what is around them."""
    trace = new_trace(100)
    made = [trace.root]
    for _ in range(draw(st.integers(0, 12))):
        around = draw(st.sampled_from(made))
        start, end = sorted(draw(st.tuples(st.integers(-10, 110), st.integers(-10, 110))))
        made.append(add(around, draw(st.sampled_from(KINDS[1:])), start, end))
    return trace


@given(traces())
def test_every_moment_counts_once(trace: Trace) -> None:
    assert sum(share_time(trace.root, trace.spans).values()) == pytest.approx(100 * MS)
    assert 0.0 <= trace.summary().coverage <= 1.0


@given(traces())
def test_the_critical_path_has_no_gaps(trace: Trace) -> None:
    steps = critical_path(trace.root, trace.spans)
    assert (steps[0].start_ns, steps[-1].end_ns) == (0, 100 * MS)
    assert all(before.end_ns == after.start_ns for before, after in itertools.pairwise(steps))


def test_ten_thousand_levels_are_no_trouble() -> None:
    trace = new_trace(100)
    around = trace.root
    for _ in range(9_999):
        around = add(around, "network", 0, 100, "deep")
    assert path_of(trace) == [("deep", 0, 100)]
    assert trace.summary().coverage == 1.0
