"""The command ``treadle plan``: how a model would run on this machine, and why so.

Leaves to others: the choices and predictions (``engine.outlook``), and trying alternatives (``treadle tune``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.console import console
from treadle.cli.option_groups import PlacementOptions, expand_groups
from treadle.cli.table import print_rows

if TYPE_CHECKING:
    from treadle.engine.outlook import Outlook
    from treadle.engine.prediction import Prediction
    from treadle.hardware.machine_speed import MachineSpeed

__all__ = ["register"]

_UNKNOWN = "not known"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan")(expand_groups(plan))


def plan(
    model: Annotated[
        str, typer.Argument(help="Name of a stored model or of one in the catalog, or the path of a .gguf file.")
    ],
    *,
    compare: Annotated[
        str, typer.Option("--compare", help="Predict these quantisations instead, such as Q4_K_M,Q5_K_M,Q8_0.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    placement: PlacementOptions,
) -> None:
    """Show how a model would run on this machine: threads, places, memory, context, the reasons, and about how fast.

    The speed is predicted from the shape of the model and from what memory and arithmetic of this machine give at the
    moment, measured for a second. A model of the catalog need not be here.

    Options win over TREADLE_* variables, those over `treadle.toml` in this folder, that over `treadle.toml` in the
    user's configuration folder, and all of them over what is measured.
    """
    from treadle.cli.bandwidth import remember_bandwidth  # noqa: PLC0415  loads the native core
    from treadle.engine.outlook import look_ahead  # noqa: PLC0415

    outlook = look_ahead(
        model,
        [quant.strip() for quant in compare.split(",") if quant.strip()],
        **placement.as_arguments(),
    )
    if outlook.speed is not None:
        remember_bandwidth({outlook.plan.threads.num_threads: [outlook.speed]})
    if as_json:
        console.out(json.dumps(_as_dict(outlook), indent=2))
        return
    print_rows(outlook.plan.choices())
    if outlook.speed is not None:
        console.out("")
        print_rows(_predicted(outlook))
        console.note(f"predicted from {_speed(outlook.speed)}, measured now")


def _as_dict(outlook: Outlook) -> dict[str, Any]:
    speed = None if outlook.speed is None else dataclasses.asdict(outlook.speed)
    predictions = {
        name: None if found is None else dataclasses.asdict(found) for name, found in outlook.predictions.items()
    }
    return outlook.plan.as_dict() | {"measured": speed, "predicted": predictions}


def _predicted(outlook: Outlook) -> list[list[str]]:
    """The table of predictions, a column for each quantisation."""
    columns = [_column(found) for found in outlook.predictions.values()]
    rows = [["predicted", *outlook.predictions]]
    rows += [[label, *(column.get(label, "does not fit") for column in columns)] for label in _labels(columns)]
    return rows


def _speed(speed: MachineSpeed) -> str:
    ops = speed.int8_ops_per_second / 1e9
    products = f"{ops:,.0f} G int8 operations/s ({speed.isa})" if ops else "an unknown rate of int8 operations"
    return f"{speed.read_bytes_per_second / 1e9:.1f} GB/s and {products}"


def _labels(columns: Sequence[dict[str, str]]) -> list[str]:
    return list(next((column for column in columns if column), {"": ""}))


def _column(found: Prediction | None) -> dict[str, str]:
    if found is None:
        return {}
    rows = {f"decode, {_count(count, 'stream')}": _rate(rate) for count, rate in found.decode_rates.items()}
    rows["prompt of 512" if found.decode_rates else "text of 512"] = _rate(found.prompt_rate)
    for length, seconds in found.first_token_seconds.items():
        rows[f"first token after {length}"] = _UNKNOWN if seconds is None else f"{seconds:.2f} s"
    rows["memory"] = f"{found.memory_bytes / 1e6:,.0f} MB"
    rows["largest context"] = f"{found.largest_context} tokens"
    if found.decode_rates:
        bound = found.compute_bound_streams
        rows["bound by compute"] = _UNKNOWN if bound is None else f"from {_count(bound, 'stream')} on"
    return rows


def _rate(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate:.0f} tok/s"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
