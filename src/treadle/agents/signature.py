"""Makes of a function's signature and docstring what a model is told, and what builds its arguments from JSON.

Leaves to others: checking what a model wrote (``arguments``) and calling the function (``function_tool``).
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from treadle.agents.docstring import read_docstring
from treadle.agents.model_schema import for_model
from treadle.errors import ToolError, UsageError

__all__ = ["Signature"]

_HINT = "annotate every parameter with a type that JSON can carry"


class Signature:
    """The parameters of a function, as a JSON schema and as what turns JSON into their values.

    Attributes:
        description: What the docstring says before its sections.
        schema: The JSON schema of an object with an entry for each parameter.

    Raises:
        UsageError: The function takes what no schema can say: a parameter without annotation, ``*args``, a type or a
            default that is not JSON; or its docstring describes a parameter that it does not have.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function_name = getattr(function, "__qualname__", repr(function))
        self.description, described = read_docstring(inspect.getdoc(function))
        parameters = self._parameters(function)
        unknown = [name for name in described if name not in parameters]
        if unknown:
            self._refuse(f"its docstring describes {unknown[0]!r}, which is no parameter")
        hints = self._hints(function)
        fields = {name: self._field(each, hints, described.get(name)) for name, each in parameters.items()}
        self._names = {f"p{index}": name for index, name in enumerate(parameters)}
        self._model = self._make_model(list(fields.values()))
        self.schema = self._make_schema()

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to call the function with.

        Raises:
            ToolError: A value satisfies the schema, but not what the type asks beyond that.
        """
        import pydantic  # noqa: PLC0415

        try:
            read = self._model.model_validate_json(json.dumps(dict(arguments)))
        except pydantic.ValidationError as error:
            problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
            raise ToolError("; ".join(problems)) from None
        given = read.model_fields_set
        return {name: getattr(read, field) for field, name in self._names.items() if field in given}

    def _parameters(self, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            self._refuse(f"it has no signature to read: {error}")
        for each in parameters.values():
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
                self._refuse(f"{stars}{each.name} takes anything, expected parameters with names")
            if each.kind is each.POSITIONAL_ONLY:
                self._refuse(f"{each.name!r} cannot be given by name")
            if each.annotation is each.empty:
                self._refuse(f"{each.name!r} has no annotation")
        return parameters

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        target = function
        if not inspect.isroutine(function) and not inspect.isclass(function):
            target = type(function).__call__  # an object that can be called
        try:
            return typing.get_type_hints(target, include_extras=True)
        except (NameError, TypeError) as error:
            self._refuse(f"an annotation cannot be read: {error}")

    def _field(self, parameter: inspect.Parameter, hints: Mapping[str, Any], description: str | None) -> Any:
        from pydantic import Field  # noqa: PLC0415

        default = ... if parameter.default is parameter.empty else parameter.default
        if default is not ...:
            self._check_default(parameter.name, default)
        kind = hints[parameter.name]
        if description is not None:
            kind = typing.Annotated[kind, Field(description=description)]
        return kind, Field(default, alias=parameter.name)

    def _check_default(self, name: str, default: Any) -> None:
        from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415

        try:
            json.dumps(to_jsonable_python(default), allow_nan=False)
        except (PydanticSerializationError, ValueError):
            self._refuse(f"the default of {name!r} is not JSON: {default!r:.80}")

    def _make_model(self, fields: list[Any]) -> Any:
        """Return the model of all arguments; its fields have names of ours, as not every name can be that of one."""
        import pydantic  # noqa: PLC0415

        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        numbered: dict[str, Any] = {f"p{index}": field for index, field in enumerate(fields)}
        try:
            return pydantic.create_model("Arguments", __config__=config, **numbered)
        except (pydantic.errors.PydanticUserError, TypeError) as error:
            self._refuse(f"a parameter has a type that JSON cannot carry: {_first_line(error)}")

    def _make_schema(self) -> dict[str, Any]:
        import pydantic  # noqa: PLC0415

        try:
            schema = self._model.model_json_schema()
        except pydantic.errors.PydanticUserError as error:
            self._refuse(f"a parameter has a type that JSON cannot carry: {_first_line(error)}")
        schema.setdefault("properties", {})
        return for_model(schema)

    def _refuse(self, problem: str) -> NoReturn:
        raise UsageError(f"tool {self._function_name}: {problem}", hint=_HINT)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
