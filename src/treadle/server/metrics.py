"""What Prometheus reads: latencies and tokens under the names that vLLM's dashboards know, and figures of our own.

Leaves to others: taking the times (``server.watch``) and how the engines are doing (``server.engine_metrics``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from treadle.server.engine_metrics import SHARED_LABELS, EngineCollector, shared_labels
from treadle.server.machine_metrics import MachineCollector

if TYPE_CHECKING:
    from treadle.server.hub import ModelHub
    from treadle.server.limits import Limits
    from treadle.server.machine_watch import MachineWatch
    from treadle.server.record import RequestRecord

__all__ = ["Metrics", "ModelMetrics"]

# Every edge of vLLM's own histograms, so that its quantiles come out alike, and finer ones where a CPU needs them.
_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_SECONDS = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Metrics:
    """The metrics of one server, in a registry of their own.

    Labels never hold what a client chose: models are those of the hub, routes those of the application.

    Args:
        hub: The models.
        limits: The requests in the server.
        machine: What the machine could do.
        prefix: What stands before the colon in the names that are not ours alone.
    """

    def __init__(self, hub: ModelHub, limits: Limits, machine: MachineWatch, *, prefix: str) -> None:
        self._registry = CollectorRegistry()
        self._families = _Families(self._registry, prefix)
        self._models = {name: ModelMetrics(self._families, name) for name in hub.models}
        self._http = Counter(
            "treadle:http_requests",
            "Requests by route and status; 499 is a client that left.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        # The same under the names of the package that serves vLLM's.
        self._http_classes = Counter(
            "http_requests",
            "Requests by route and class of their status.",
            ["handler", "method", "status"],
            registry=self._registry,
        )
        in_server = Gauge("treadle:http_requests_in_progress", "Requests that make work.", registry=self._registry)
        in_server.set_function(lambda: limits.num_requests)
        queued = Gauge("treadle:http_requests_queued", "Of these, without a first token.", registry=self._registry)
        queued.set_function(lambda: limits.num_queued)
        ProcessCollector(registry=self._registry)
        self._registry.register(EngineCollector(hub, machine, prefix))
        self._registry.register(MachineCollector(machine))

    def of_model(self, name: str) -> ModelMetrics:
        """Return where to count what happens with a model of the hub."""
        return self._models[name]

    def count_request(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        method = record.method if record.method in _METHODS else "other"
        self._count(method, record.route, record.status)

    def count_refusal(self, status: int) -> None:
        """Count a request that was refused before it was complete enough to have a method and a route."""
        self._count("other", "other", status)

    def exposition(self) -> bytes:
        """Return everything in the text format of Prometheus, version 0.0.4."""
        return generate_latest(self._registry)

    def _count(self, method: str, route: str, status: int) -> None:
        self._http.labels(method, route, str(status)).inc()
        self._http_classes.labels(route, method, f"{status // 100}xx").inc()


class _Families:
    """The metrics of all models, before a model is chosen."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{prefix}:{name}", text, SHARED_LABELS, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{prefix}:{name}", text, [*SHARED_LABELS, *labels], registry=registry)

        self.first_token = histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token.", _FIRST_TOKEN_SECONDS
        )
        self.inter_token = histogram("inter_token_latency_seconds", "Between tokens of an answer.", _TOKEN_SECONDS)
        self.end_to_end = histogram(
            "e2e_request_latency_seconds", "From the request's arrival to the end of the answer.", _REQUEST_SECONDS
        )
        self.queue = histogram("request_queue_time_seconds", "Until an answer's first step.", _REQUEST_SECONDS)
        self.prefill = histogram("request_prefill_time_seconds", "From there to its first token.", _REQUEST_SECONDS)
        self.decode = histogram("request_decode_time_seconds", "From there to its last token.", _REQUEST_SECONDS)
        self.inference = histogram("request_inference_time_seconds", "Both of these.", _REQUEST_SECONDS)
        self.token = histogram(
            "request_time_per_output_token_seconds", "Between tokens of an answer, its mean.", _TOKEN_SECONDS
        )
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.request_generation_tokens = histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self.longest_answer = histogram(
            "request_max_num_generation_tokens", "Tokens of the longest answer to a prompt.", _TOKENS
        )
        self.success = counter("request_success", "Answers by how they ended.", "finished_reason")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of all prompts, cached ones included.")
        self.generation_tokens = counter("generation_tokens", "Tokens of all answers.")


class ModelMetrics:
    """The metrics of one model."""

    def __init__(self, families: _Families, name: str) -> None:
        labels = shared_labels(name)
        self.first_token = families.first_token.labels(*labels)
        self.inter_token = families.inter_token.labels(*labels)
        self.end_to_end = families.end_to_end.labels(*labels)
        self.queue = families.queue.labels(*labels)
        self.prefill = families.prefill.labels(*labels)
        self.decode = families.decode.labels(*labels)
        self.inference = families.inference.labels(*labels)
        self.token = families.token.labels(*labels)
        self.request_prompt_tokens = families.request_prompt_tokens.labels(*labels)
        self.request_generation_tokens = families.request_generation_tokens.labels(*labels)
        self.longest_answer = families.longest_answer.labels(*labels)
        self.prompt_tokens = families.prompt_tokens.labels(*labels)
        self.generation_tokens = families.generation_tokens.labels(*labels)
        self._finished = {
            reason: families.success.labels(*labels, reason) for reason in ("stop", "length", "abort", "error")
        }

    def finished(self, reason: str) -> Counter:
        """Return the counter of answers that end for ``reason``."""
        return self._finished[reason]
