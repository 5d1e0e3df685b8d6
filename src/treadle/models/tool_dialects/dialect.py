"""Which dialect a model speaks, told by the markers in its chat template.

Leaves to others: reading an answer (one file per dialect).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treadle.models.tool_dialects import fenced, gemma, glm, granite, harmony, hermes, llama, mistral, pythonic
from treadle.models.tool_dialects.parts import AnswerParser, ToolSchemas
from treadle.models.tool_dialects.qwen_xml import qwen_xml_parser

__all__ = ["DIALECTS", "CallFrame", "Dialect", "find_dialect"]


@dataclass(frozen=True)
class CallFrame:
    """How to write one call as JSON: ``opening``, an object with ``name`` and the arguments, ``closing``."""

    opening: str
    closing: str
    arguments_key: str = "arguments"


@dataclass(frozen=True)
class Dialect:
    """One way to spell calls.

    ``markers`` are in the chat template of every model that speaks it. ``control_tokens`` must be kept when the
    answer's tokens become text. ``frame`` is what a forced call is made of: dialects that are not JSON have a bare
    JSON call read instead, by ``forced_parser``; ``framed`` reads frames alone, ``parser`` may read more. Where every
    answer ``is_enveloped``, all of them have to be read, and one whose form is given begins after ``forced_opening``.
    """

    name: str
    markers: tuple[str, ...]
    parser: Callable[[ToolSchemas], AnswerParser]
    frame: CallFrame = CallFrame("", "")
    control_tokens: tuple[str, ...] = ()
    is_json: bool = True
    is_enveloped: bool = False
    forced_opening: str = ""
    framed: Callable[[ToolSchemas], AnswerParser] | None = None

    @property
    def forced_parser(self) -> Callable[[ToolSchemas], AnswerParser]:
        """Return the parser of calls written in ``frame``."""
        return self.framed or (self.parser if self.is_json else llama.llama_parser)


def _gemma(name: str, markers: gemma.GemmaMarkers) -> Dialect:
    tokens = (markers.opening, markers.closing, markers.quote)
    return Dialect(name, (markers.opening,), gemma.gemma_parser(markers), control_tokens=tokens, is_json=False)


# The first whose markers are all in the template is the one; the last has none and takes the rest.
DIALECTS = (
    Dialect(
        "harmony",
        (harmony.CHANNEL, harmony.MESSAGE),
        harmony.harmony_parser,
        control_tokens=harmony.CONTROL_TOKENS,
        is_json=False,
        is_enveloped=True,
        forced_opening=f"{harmony.CHANNEL}final{harmony.MESSAGE}",
    ),
    Dialect("glm", (hermes.OPENING, "<arg_key>"), glm.glm_parser, control_tokens=glm.CONTROL_TOKENS, is_json=False),
    Dialect("qwen-xml", (hermes.OPENING, "<function="), qwen_xml_parser, is_json=False),
    Dialect(
        "hermes",
        (hermes.OPENING,),
        hermes.hermes_parser,
        CallFrame(f"{hermes.OPENING}\n", f"\n{hermes.CLOSING}"),
        (hermes.OPENING, hermes.CLOSING),
        framed=hermes.tagged_parser,
    ),
    _gemma("gemma", gemma.GEMMA),
    _gemma("function-gemma", gemma.FUNCTION_GEMMA),
    Dialect("mistral", (mistral.OPENING,), mistral.mistral_parser, control_tokens=(mistral.OPENING,), is_json=False),
    Dialect(
        "phi",
        (granite.OPENING, granite.CLOSING),
        granite.phi_parser,
        CallFrame(granite.OPENING, granite.CLOSING),
        (granite.OPENING, granite.CLOSING),
    ),
    Dialect("granite", (granite.OPENING,), granite.granite_parser, control_tokens=(granite.OPENING,), is_json=False),
    # What stands before the tools in all templates of LFM2; not all of them show how a call is written.
    Dialect(
        "pythonic",
        ("List of tools: ",),
        pythonic.pythonic_parser,
        control_tokens=(pythonic.OPENING, pythonic.CLOSING),
        is_json=False,
    ),
    Dialect("llama", ("ipython",), llama.llama_parser, CallFrame("", "", "parameters"), (llama.PYTHON_TAG,)),
    Dialect("fenced", (), fenced.fenced_parser, CallFrame(fenced.OPENING, fenced.CLOSING)),
)


def find_dialect(template: str) -> Dialect:
    """Return the dialect that a chat template's text shows."""
    return next(dialect for dialect in DIALECTS if all(marker in template for marker in dialect.markers))
