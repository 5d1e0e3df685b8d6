"""What a model would do on this machine before it is loaded, or even here: its plan, and predictions for quantisations.

Leaves to others: the choices (``execution_plan``), the figures (``prediction``) and showing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.engine.choose import choose_engine
from treadle.engine.execution_plan import ExecutionPlan, MachineView, plan_execution
from treadle.engine.outset import PlanOptions, plan_model, read_settings, view_machine
from treadle.engine.prediction import Prediction, predict
from treadle.errors import CapacityError
from treadle.hardware.roofline import Roofline, measure_roofline
from treadle.models.catalog import find_entry
from treadle.models.catalog_shapes import catalog_outline
from treadle.models.gguf import ModelFile
from treadle.models.outline import ModelOutline, outline_of, requantised
from treadle.models.store import ModelStore, find_stored, is_path, resolve_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.config import Settings
    from treadle.hardware.machine_speed import MachineSpeed

__all__ = ["AS_IT_IS", "Outlook", "look_ahead"]

AS_IT_IS = "as it is"
_CATALOG_QUANT = "Q4_K_M"


@dataclass(frozen=True)
class Outlook:
    """The plan, the measured speed of the machine, and a prediction by quantisation.

    ``speed`` is None, and ``predictions`` empty, where the core does not run the model or the machine could not be
    measured; a prediction is None where that quantisation does not fit in memory.
    """

    plan: ExecutionPlan
    speed: MachineSpeed | None
    predictions: dict[str, Prediction | None]


def look_ahead(model: str | Path, quants: Sequence[str] = (), **options: Unpack[PlanOptions]) -> Outlook:
    """Plan a model and predict its speed, as it is and in other quantisations; measures the machine for a second.

    Args:
        model: A stored model, a file, or a model of the catalog that is not here: then in Q4_K_M.
        quants: Quantisations to predict, of ``models.outline.QUANTS``; none predicts the model as it is.
        options: As ``LLM`` takes them.

    Raises:
        UsageError: There is no such model or quantisation, or an option is out of range.
        CapacityError: The model does not fit in memory.
    """
    settings, machine = read_settings(options), view_machine()
    found, is_native, plan = _planned(model, settings, machine, options)
    usual, outline = AS_IT_IS if isinstance(found, ModelFile) else _CATALOG_QUANT, outline_of(found)
    candidates = {quant.upper(): requantised(outline, quant) for quant in quants} or {usual: outline}
    roofline = measure_roofline(plan.threads.cpus, settings.isa) if is_native else None
    if roofline is None:
        return Outlook(plan, None, {})
    settings = settings.override(kv_type=plan.memory.kv_type)
    predictions = {name: _predict(candidate, settings, machine, roofline) for name, candidate in candidates.items()}
    return Outlook(plan, roofline.speed, predictions)


def _planned(
    model: str | Path, settings: Settings, machine: MachineView, options: PlanOptions
) -> tuple[ModelFile | ModelOutline, bool, ExecutionPlan]:
    """The model, whether the core runs it, and its plan; of a model of the catalog that is not here its outline."""
    if isinstance(model, str) and not is_path(model) and find_stored(model, ModelStore()) is None:
        entry = find_entry(model)
        if entry is not None and entry.shape is not None:
            outline = requantised(catalog_outline(entry, entry.shape), _CATALOG_QUANT)
            return outline, True, plan_execution(outline, settings, machine)
    file = ModelFile.open(resolve_model(model, pull=False))
    is_native = choose_engine(file, settings.engine).name == "native"
    return file, is_native, plan_model(file.path, **options)


def _predict(model: ModelOutline, settings: Settings, machine: MachineView, roofline: Roofline) -> Prediction | None:
    try:
        return predict(model, plan_execution(model, settings, machine).memory, roofline)
    except CapacityError:
        return None
