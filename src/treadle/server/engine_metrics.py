"""How the engines are doing, read from them whenever Prometheus asks.

Leaves to others: the numbers themselves (``AsyncEngine.stats``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS
from treadle.server.machine_watch import Shares

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from treadle.engine.load import LoadReport
    from treadle.engine.statistics import EngineStats
    from treadle.server.hub import ModelHub
    from treadle.server.machine_watch import MachineWatch

__all__ = ["SHARED_LABELS", "EngineCollector", "shared_labels"]

# vLLM numbers the engines of a model; here each model has one.
SHARED_LABELS = ("model_name", "engine")
_ENGINE = "0"
_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


class _Figure(NamedTuple):
    """One number of an engine, and what it is called."""

    family: _Family
    name: str
    text: str
    read: Callable[[EngineStats, LoadReport], float]

    def family_of(
        self, labels: Sequence[str], found: Iterable[tuple[Sequence[str], EngineStats, LoadReport]]
    ) -> Metric:
        """Return the metric of engines, of which each has its values of ``labels``."""
        family = self.family(self.name, self.text, labels=labels)
        for values, stats, report in found:
            family.add_metric(values, self.read(stats, report))
        return family


def _common_figures(prefix: str) -> tuple[_Figure, ...]:
    counter, gauge = CounterMetricFamily, GaugeMetricFamily
    return (
        _Figure(
            gauge,
            f"{prefix}:num_requests_running",
            "Requests that hold KV blocks.",
            lambda s, _: s.scheduler.num_running,
        ),
        _Figure(
            gauge, f"{prefix}:num_requests_waiting", "Requests that hold none.", lambda s, _: s.scheduler.num_waiting
        ),
        _Figure(
            gauge,
            f"{prefix}:kv_cache_usage_perc",
            "Share of the KV blocks that requests hold, 0 to 1; of two pools the fuller one's.",
            lambda s, _: max(pool.used_share for pool in s.scheduler.pools),
        ),
        _Figure(
            counter, f"{prefix}:prefix_cache_queries", "Prompt tokens looked for.", lambda s, _: s.num_prompt_tokens
        ),
        _Figure(
            counter,
            f"{prefix}:prefix_cache_hits",
            "Prompt tokens found and not computed again.",
            lambda s, _: s.num_prompt_tokens - s.scheduler.num_missed_tokens,
        ),
        _Figure(
            counter,
            f"{prefix}:prompt_tokens_cached",
            "The same, as vLLM tells it beside the prompts.",
            lambda s, _: s.num_prompt_tokens - s.scheduler.num_missed_tokens,
        ),
        _Figure(
            counter,
            f"{prefix}:num_preemptions",
            "Requests that had to give their KV blocks back.",
            lambda s, _: s.scheduler.num_preemptions,
        ),
    )


_OWN_FIGURES = (
    _Figure(GaugeMetricFamily, "treadle:threads", "Threads that compute at present.", lambda s, _: s.num_threads),
    _Figure(GaugeMetricFamily, "treadle:weight_bytes", "Memory of the weights.", lambda _, r: r.weight_bytes),
    _Figure(
        GaugeMetricFamily,
        "treadle:prompt_tokens_per_second",
        "Prompt tokens computed, over ten seconds.",
        lambda s, _: s.steps.prompt_rate,
    ),
    _Figure(
        GaugeMetricFamily,
        "treadle:generation_tokens_per_second",
        "Answer tokens computed, over ten seconds.",
        lambda s, _: s.steps.answer_rate,
    ),
    _Figure(
        CounterMetricFamily,
        "treadle:weight_bytes_read",
        "Bytes of weights that the steps read.",
        lambda s, r: s.steps.num_steps * r.decode_bytes,
    ),
    _Figure(
        CounterMetricFamily, "treadle:kv_bytes_read", "Bytes of KV blocks besides.", lambda s, _: s.steps.kv_bytes_read
    ),
    _Figure(CounterMetricFamily, "treadle:steps", "Steps of the engine.", lambda s, _: s.steps.num_steps),
    _Figure(
        CounterMetricFamily, "treadle:step_seconds", "Time of the steps in all.", lambda s, _: s.steps.step_seconds
    ),
    _Figure(
        CounterMetricFamily,
        "treadle:step_native_seconds",
        "Of it, time in the native core; the rest is overhead.",
        lambda s, _: s.steps.native_seconds,
    ),
)


class EngineCollector(Collector):
    """Asks every model of a hub that computes here how it is doing."""

    def __init__(self, hub: ModelHub, machine: MachineWatch, prefix: str) -> None:
        self._hub = hub
        self._machine = machine
        self._prefix = prefix
        self._shared = _common_figures(prefix)

    def describe(self) -> Iterator[Metric]:
        """Return nothing: what there is depends on the models loaded."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics as they stand."""
        found = list(_measured(self._hub))
        for figure in self._shared:
            yield figure.family_of(
                SHARED_LABELS, [(shared_labels(name), stats, report) for name, stats, report in found]
            )
        for figure in _OWN_FIGURES:
            yield figure.family_of(("model_name",), [((name,), stats, report) for name, stats, report in found])
        yield from self._shared_facts(found)
        cached = GaugeMetricFamily(
            "treadle:cached_tokens", "Tokens that need not be computed again.", labels=["model_name", "tier"]
        )
        for name, stats, _ in found:
            for tier, num_blocks in _cached_blocks(stats).items():
                cached.add_metric([name, tier], num_blocks * KV_BLOCK_TOKENS)
        yield cached
        yield from self._shares((name, stats) for name, stats, _ in found)

    def _shared_facts(self, found: Sequence[tuple[str, EngineStats, LoadReport]]) -> Iterator[Metric]:
        """Iterate over those with labels of their own; routers of requests read the second to know what fits."""
        sources = CounterMetricFamily(
            f"{self._prefix}:prompt_tokens_by_source",
            "Prompt tokens by where they came from.",
            labels=[*SHARED_LABELS, "source"],
        )
        config = GaugeMetricFamily(
            f"{self._prefix}:cache_config_info",
            "The KV blocks, in its labels.",
            labels=[*SHARED_LABELS, "block_size", "num_gpu_blocks", "cache_dtype"],
        )
        for name, stats, report in found:
            num_missed = stats.scheduler.num_missed_tokens
            sources.add_metric([*shared_labels(name), "local_compute"], num_missed)
            sources.add_metric([*shared_labels(name), "local_cache_hit"], stats.num_prompt_tokens - num_missed)
            blocks = [str(KV_BLOCK_TOKENS), str(stats.scheduler.pools[0].num_blocks), report.memory_plan.kv_type]
            config.add_metric([*shared_labels(name), *blocks], 1)
        yield from (sources, config)

    def _shares(self, found: Iterable[tuple[str, EngineStats]]) -> Iterator[Metric]:
        bandwidth = GaugeMetricFamily(
            "treadle:bandwidth_share",
            "Of the memory's bandwidth at best, what steps of answers read while they computed; 0 to 1, ten seconds.",
            labels=["model_name"],
        )
        int8 = GaugeMetricFamily(
            "treadle:int8_share",
            "Of the int8 operations at best, what steps with prompts did while they computed; 0 to 1, ten seconds.",
            labels=["model_name"],
        )
        for name, stats in found:
            shares = Shares(self._machine.speed, stats)
            for family, share in ((bandwidth, shares.bandwidth), (int8, shares.int8)):
                if share is not None:
                    family.add_metric([name], share)
        yield from (bandwidth, int8)


def shared_labels(model: str) -> tuple[str, str]:
    """Return the values of ``SHARED_LABELS``."""
    return model, _ENGINE


def _measured(hub: ModelHub) -> Iterator[tuple[str, EngineStats, LoadReport]]:
    """Iterate over the models that compute in this process."""
    for model in hub.loaded:
        if model.engine is None:
            continue
        stats, report = model.engine.stats(), model.engine.report
        if stats is not None and report is not None:
            yield model.name, stats, report


def _cached_blocks(stats: EngineStats) -> dict[str, int]:
    store = stats.store
    return {
        "pool": stats.scheduler.pools[0].num_cached,
        "ram": 0 if store is None else store.num_in_ram,
        "disk": 0 if store is None else store.num_on_disk,
    }
