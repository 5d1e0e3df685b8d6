"""The Jinja environment chat templates run in: what the transformers library offers, without its trust.

Attributes and mutation are refused by Jinja's own immutable sandbox. On top of it every loop, call, filter, operator
and output is charged to the rendering's ``TemplateBudget``, which alone knows the limits. Three filters whose running
time no limit on their input bounds are left out: ``pprint``, ``striptags`` and ``urlize``; so is ``lipsum``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from treadle.models.template_budget import BudgetExceeded, TemplateBudget
from treadle.models.template_limits import (
    FILTER_LIMITS,
    check_braces,
    check_percent,
    check_power,
    check_product,
    check_string_method,
)

__all__ = ["GUARD_NAME", "TemplateEnvironment"]

GUARD_NAME = "guard character"
"""The variable that holds the prompt's guard character; the space in it keeps templates from reading it."""

_MISSING_FILTERS = ("pprint", "striptags", "urlize")
_LONG_STRFTIME = re.compile(r".{200}|%[^a-zA-Z]*\d{3}", re.DOTALL)
# A literal with fewer elements costs less than the step that reaches it.
_LONG_LITERAL = 8


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates whose rendering is charged to the current budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols], finalize=_finalize
        )
        self.filters["tojson"] = _to_json
        for name in _MISSING_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        filters: dict[str, Any] = self.filters
        self.filters = {name: _charged(each, FILTER_LIMITS.get(name)) for name, each in filters.items()}
        self.filters |= _INSERTED_FILTERS
        tests: dict[str, Any] = self.tests
        self.tests = {name: _charged(each, None) for name, each in tests.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def parse_charged(self, source: str) -> nodes.Template:
        """Parse a template and put its charges in."""
        tree: nodes.Template = _ChargeInserter().visit(self.parse(source))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse, besides what the sandbox refuses, methods that make much out of little."""
        if isinstance(obj, (int, float)) or (isinstance(obj, bytes) and attr != "decode"):
            return False
        if isinstance(obj, str) and attr in ("translate", "maketrans", "striptags"):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Check ``str.format`` like the ``%`` operator."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_braces(value.__self__, (args, kwargs))
            return wrapped(*args, **kwargs)

        return checked

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call something from a template; the odd names leave all others to the template's keywords."""
        budget = TemplateBudget.current()
        budget.step()
        budget.allow_elements(len(args) + len(kwargs))
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join" and len(args) == 1:
                args = (list(args[0]),)
            check_string_method(owner, __obj.__name__, args)
        for each in (*args, *kwargs.values()):
            budget.measure(each)
        return budget.account(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check what an operator would build before it does."""
        budget = TemplateBudget.current()
        budget.step()
        if operator == "%" and isinstance(left, str):
            check_percent(left, right)
        elif operator == "*":
            check_product(left, right)
        elif operator == "**":
            check_power(left, right)
        return budget.account(super().call_binop(context, operator, left, right))


class _ChargeInserter(NodeTransformer):
    """Puts filters into a parsed template that charge what no hook of the sandbox sees.

    Their names hold a space, so that no template can name them.
    """

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _step(node))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _step(node))
        return node

    visit_CallBlock = visit_Block = visit_Macro  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        length = sum(len(each.data) for each in node.nodes if isinstance(each, nodes.TemplateData))
        return [_step(node, length), node] if length else [node]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "joined text")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "accounted value") if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "measured value")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "measured value")
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "accounted value") if len(node.items) > _LONG_LITERAL else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "accounted value") if len(node.items) > _LONG_LITERAL else node


class _GenerationTag(Extension):
    """``{% generation %}`` marks an assistant's words for training; for rendering it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the type is Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the tag and what it encloses."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _charged(function: Callable[..., Any], limit: Callable[..., None] | None) -> Callable[..., Any]:
    """A filter or test that pays before it runs and for what it gives.

    Taking the context also keeps the compiler from running it on constants, where no budget is in force.
    """
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def charged(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = TemplateBudget.current()
        budget.step()
        if limit is FILTER_LIMITS["join"] and not isinstance(value, (str, list)):
            value = list(value)
        for each in (value, *args, *kwargs.values()):
            budget.measure(each)
        if limit is not None:
            limit(value, *args, **kwargs)
        passed = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        leading = (passed[wants],) if wants else ()
        return budget.account(function(*leading, value, *args, **kwargs))

    return charged


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _step(node: nodes.Node, length: int = 0) -> nodes.ExprStmt:
    charge = nodes.Const(length, lineno=node.lineno)
    return nodes.ExprStmt(_filtered(charge, "one step"), lineno=node.lineno)


@pass_context
def _one_step(_context: Context, length: int) -> int:
    budget = TemplateBudget.current()
    budget.step()
    budget.allow_text(length)
    return length


@pass_context
def _joined_text(_context: Context, parts: list[Any]) -> str:
    budget = TemplateBudget.current()
    budget.step()
    budget.allow_text(budget.measure(parts))
    return "".join(map(str, parts))


@pass_context
def _accounted_value(_context: Context, value: Any) -> Any:
    return TemplateBudget.current().account(value)


@pass_context
def _measured_value(_context: Context, value: Any) -> Any:
    TemplateBudget.current().measure(value)
    return value


_INSERTED_FILTERS: dict[str, Callable[..., Any]] = {
    "one step": _one_step,
    "joined text": _joined_text,
    "accounted value": _accounted_value,
    "measured value": _measured_value,
}


@pass_context
def _finalize(_context: Context, value: Any) -> Any:
    budget = TemplateBudget.current()
    budget.step()
    budget.allow_text(budget.measure(value))
    return value


@pass_context
def _to_json(  # noqa: PLR0917 - the parameters of transformers, in its order
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``json.dumps`` with the defaults of transformers."""
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        text = encoder.encode(value)
    else:
        budget = TemplateBudget.current()
        text = "".join([budget.account(chunk) for chunk in encoder.iterencode(value)])
    if ensure_ascii:
        kept = context.resolve(GUARD_NAME)
        text = re.sub(r"[^\x00-\x7f]", lambda match: match[0] if match[0] == kept else json.dumps(match[0])[1:-1], text)
    return text


def _raise_exception(message: object) -> NoReturn:
    raise JinjaError(str(message))


def _strftime_now(format: str) -> str:
    if _LONG_STRFTIME.search(format):
        raise BudgetExceeded("it formats the date at great length")
    return datetime.now().strftime(format)
