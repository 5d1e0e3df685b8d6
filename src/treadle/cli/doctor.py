"""The command ``treadle doctor``: measures the machine, and says what slows models down on it and what to type.

Leaves to others: measuring (``hardware.examination``) and judging (``hardware.findings``).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.console import console
from treadle.cli.table import print_rows
from treadle.config import Settings
from treadle.errors import ModelFileError, UsageError
from treadle.models.store import ModelStore, resolve_model

if TYPE_CHECKING:
    from treadle.hardware.examination import Examination
    from treadle.hardware.finding import Finding
    from treadle.hardware.memory_latency import MemoryLatency

__all__ = ["register"]

_SCHEMA = 1  # of the JSON; higher when a field goes or changes its meaning
_WIDTH = 110
_INDENT = " " * 7


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor")(doctor)


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="Model whose file the disk is measured with; by default the largest stored one."),
    ] = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if something is red.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this machine for up to ten seconds, and say what slows models down on it, with the command against it.

    Red costs much, amber something, green is as it should be. Memory is read by one thread, by more and by all; int8
    and float operations are counted, and how long a load from each cache and from memory takes; a model's file is read
    from disk. Other programs should rest meanwhile. Nothing is changed.
    """
    from treadle.cli.bandwidth import remember_bandwidth  # noqa: PLC0415  loads the native core
    from treadle.hardware.examination import examine  # noqa: PLC0415
    from treadle.hardware.finding import worst_level  # noqa: PLC0415
    from treadle.hardware.findings import find  # noqa: PLC0415

    facts = examine(disk_path=_model_path(model), isa=Settings.from_environment().isa, progress=_show)
    _show("")
    remember_bandwidth({count: [speed] for count, speed in facts.speeds.items()})
    findings = find(facts)
    worst = worst_level(findings)
    if as_json:
        console.out(json.dumps(_as_dict(facts, findings, worst), indent=2))
    else:
        _print(facts, findings)
    if strict and worst == "red":
        raise typer.Exit(1)


def _model_path(model: str | None) -> Path | None:
    if model is not None:
        return resolve_model(model, pull=False)
    try:
        stored = [entry for entry in ModelStore().list() if entry.problem() is None]
    except (OSError, UsageError, ModelFileError):
        return None
    return max(stored, key=lambda entry: entry.files[0].bytes).path if stored else None


def _show(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty() and not console.is_quiet:
        console.draw(text)


def _as_dict(facts: Examination, findings: list[Finding], worst: str) -> dict[str, Any]:
    machine = facts.machine
    return {
        "schema": _SCHEMA,
        "worst": worst,
        "machine": {
            "processor": machine.processor.name,
            "architecture": machine.processor.architecture,
            "kernel": machine.kernel,
            "hypervisor": machine.hypervisor,
            "container": machine.container,
            "cpus": sorted(machine.topology.usable),
            "cores": len(machine.topology.cores),
            "efficiency_cores": len(machine.topology.efficiency_cores),
            "memory_nodes": len(machine.topology.nodes),
            "memory_bytes": facts.total_bytes,
            "available_bytes": machine.memory.available_bytes,
        },
        "measured": {
            "speeds": [
                {"threads": count, **dataclasses.asdict(speed)} for count, speed in sorted(facts.speeds.items())
            ],
            "latency": None if facts.latency is None else dataclasses.asdict(facts.latency),
            "disk_bytes_per_second": facts.disk_bytes_per_second,
            "disk_path": None if facts.disk_path is None else str(facts.disk_path),
            "steal_share": facts.steal_share,
        },
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def _print(facts: Examination, findings: list[Finding]) -> None:
    print_rows(_summary(facts))
    console.out("")
    for finding in findings:
        console.marked(finding.level.ljust(len(_INDENT)), finding.level, f"{finding.name}: {finding.found}")
        if finding.why:
            console.out(textwrap.fill(finding.why, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT))
        if finding.fix:
            console.out(f"{_INDENT}$ {finding.fix}")


def _summary(facts: Examination) -> list[tuple[str, str]]:
    machine = facts.machine
    known = "" if machine.hypervisor in (None, "unknown") else f" of {machine.hypervisor}"
    places = [f"kernel {machine.kernel}", f"virtual machine{known}" if machine.hypervisor else "", machine.container]
    cores = f"{machine.processor.name}, {len(machine.topology.cores)} usable cores"
    rows = [("machine", "; ".join([cores, *(place for place in places if place)]))]
    for count, speed in sorted(facts.speeds.items()):
        threads = f"{count} thread" + ("" if count == 1 else "s")
        int8, floats = speed.int8_ops_per_second / 1e9, speed.float_ops_per_second / 1e9
        arithmetic = f"{int8:,.0f} G int8 and {floats:,.0f} G float operations/s ({speed.isa})"
        rows.append((threads, f"{speed.read_bytes_per_second / 1e9:.1f} GB/s read, {arithmetic}"))
    if facts.latency is not None:
        rows.append(("latency", _latency(facts.latency)))
    if facts.disk_bytes_per_second is None:
        rows.append(("disk", "not measured: no stored model that could be read past the system's cache"))
    else:
        rows.append(("disk", f"{facts.disk_bytes_per_second / 1e6:,.0f} MB/s read"))
    return rows


def _latency(found: MemoryLatency) -> str:
    places = ", ".join(f"{place.place} {1e9 * place.seconds:.3g} ns" for place in found.places)
    share = found.huge_page_share
    pages = "" if share is None else f" ({share:.0%} of it in huge pages)"
    return places + pages
