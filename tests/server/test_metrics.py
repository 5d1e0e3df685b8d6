"""`/metrics` of a running server: its form, the names that other dashboards know, and that ours finds what it asks for."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer

pytestmark = pytest.mark.model

DASHBOARD = Path(__file__).parents[2] / "examples/deploy/grafana.json"
# What vLLM 0.11 and later export and its own dashboards show, with a label beside `model_name` and `engine`.
# https://github.com/vllm-project/vllm/blob/main/vllm/v1/metrics/loggers.py
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_time_per_output_token_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
)
COUNTERS = {
    "request_success": "finished_reason",
    "prompt_tokens": None,
    "prompt_tokens_by_source": "source",
    "prompt_tokens_cached": None,
    "generation_tokens": None,
    "prefix_cache_queries": None,
    "prefix_cache_hits": None,
    "num_preemptions": None,
}
GAUGES = {
    "num_requests_running": None,
    "num_requests_waiting": None,
    "kv_cache_usage_perc": None,
    "cache_config_info": "block_size",
}
# Edges of buckets that quantiles of vLLM's dashboards are drawn from.
EDGES = {
    "time_to_first_token_seconds": (0.001, 0.005, 0.02, 0.06, 0.25, 0.75, 7.5, 40, 640, 2560),
    "inter_token_latency_seconds": (0.01, 0.025, 0.075, 0.15, 0.4, 2.5, 7.5, 20, 80),
    "e2e_request_latency_seconds": (0.3, 0.8, 1.5, 15, 60, 480, 1920, 7680),
    "request_prompt_tokens": (1, 2, 5, 1000, 50_000),
}
# Known only where the system tells, or once the machine was idle for long enough to be measured.
ABSENT_AT_TIMES = re.compile(r"treadle:(cpu_|bandwidth_|int8_).*")


@pytest.fixture(scope="module")
def text(native_server: RunningServer) -> str:
    """What a server says that has answered."""
    with httpx.Client(base_url=native_server.url, timeout=PATIENCE_SECONDS) as http:
        body = {"prompt": "Once upon a time", "max_tokens": 3, "ignore_eos": True, "n": 2, "temperature": 1}
        assert http.post("/v1/completions", json=body).status_code == 200
        response = http.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return response.text


@pytest.fixture(scope="module")
def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_form_is_that_of_prometheus(text: str, families: dict[str, Metric]) -> None:
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert re.findall(r"^# HELP (\S+) .+", text, re.MULTILINE) == names
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    for family in families.values():
        assert family.type in ("counter", "gauge", "histogram")
        if family.type == "counter":
            assert {sample.name for sample in family.samples} <= {family.name + "_total"}
        for sample in family.samples:
            assert not math.isnan(sample.value)
            assert sample.value >= 0


def test_buckets_add_up(families: dict[str, Metric]) -> None:
    for family in families.values():
        if family.type != "histogram":
            continue
        buckets: defaultdict[str, list[float]] = defaultdict(list)
        counts: dict[str, float] = {}
        for sample in family.samples:
            labels = str(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            if sample.name.endswith("_bucket"):
                buckets[labels].append(sample.value)
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        assert counts
        for labels, values in buckets.items():
            assert values == sorted(values)
            assert values[-1] == counts[labels]


def test_names_labels_and_buckets_are_those_of_vllm(families: dict[str, Metric]) -> None:
    for name in HISTOGRAMS:
        edges = {
            float(sample.labels["le"]) for sample in families[f"vllm:{name}"].samples if sample.name.endswith("_bucket")
        }
        assert {*EDGES.get(name, ()), math.inf} <= edges
    for kind, names in (("histogram", dict.fromkeys(HISTOGRAMS)), ("counter", COUNTERS), ("gauge", GAUGES)):
        for name, label in names.items():
            family = families[f"vllm:{name}"]
            assert family.type == kind
            assert family.samples
            for sample in family.samples:
                assert (sample.labels["model_name"], sample.labels["engine"]) == (MODEL, "0")
                assert label is None or sample.labels[label]
    requests = families["http_requests"].samples[0].labels
    assert set(requests) == {"handler", "method", "status"}
    assert requests["status"] in ("2xx", "4xx", "5xx")
    assert families["process_start_time_seconds"].samples


def test_the_longest_of_several_answers_counts_once(families: dict[str, Metric]) -> None:
    def total(name: str, suffix: str) -> float:
        return sum(sample.value for sample in families[f"vllm:{name}"].samples if sample.name.endswith(suffix))

    assert total("request_max_num_generation_tokens", "_count") < total("request_generation_tokens", "_count")


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each series a query asks for and the labels it must have, `le` for quantiles among them."""
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
    for name, matchers in re.findall(r"((?:vllm|treadle):\w+)(?:\{([^}]*)\})?", expression):
        yield name, grouped | set(re.findall(r"(\w+)=~?", matchers))


def test_every_query_of_the_dashboard_finds_what_it_asks_for(families: dict[str, Metric]) -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for family in families.values():
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [selector for expression in expressions for selector in selectors(expression)]
    assert len(asked) > 20
    for name, labels in asked:
        if name in found:
            assert labels <= found[name], name
        else:
            assert ABSENT_AT_TIMES.fullmatch(name)
            assert name.removesuffix("_total") in families
    for variable in dashboard["templating"]["list"]:
        for name, label in re.findall(r"label_values\((\S+), (\w+)\)", variable["query"]):
            assert label in found[name]
