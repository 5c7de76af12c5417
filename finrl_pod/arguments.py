"""Checks of the arguments of public functions by their annotations, before any code of theirs runs."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError, listed, shown

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MAX_INTEGER = 2**1023  # that a float can hold
MAX_NAME = 255  # characters of a file name on all systems
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def check_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function that raises InputError, naming the argument, for values that its annotations exclude.

    NumPy scalars are passed on as Python numbers, and dates as text. `Annotated[type, words]` has the words for
    what an argument must be. Ranges, and names that must exist, are for the function to check.
    """
    signature = inspect.signature(function)
    parameters = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    annotations: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            call_arguments = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"{function.__name__}(): {error}; see help(fp.{function.__qualname__})") from None
        if not annotations:
            annotations.update({name: _resolve(p.annotation, function) for name, p in parameters.items()})
        for name, value in call_arguments.arguments.items():
            if name in annotations and parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                call_arguments.arguments[name] = tuple(argument(name, item, annotations[name]) for item in value)
            elif name in annotations:
                call_arguments.arguments[name] = argument(name, value, annotations[name])
        return function(*call_arguments.args, **call_arguments.kwargs)

    return call


def argument(name: str, value: object, annotation: object) -> Any:
    """A value as its annotation asks for, with NumPy scalars as Python numbers. Raises InputError for others."""
    if isinstance(value, str | Path) and not _is_name_or_path(str(value)):
        raise InputError(f"{name} must have at most {MAX_NAME} characters between slashes, got {shown(str(value))}")
    python_value = _convert(value, annotation)
    if python_value is not _REFUSED:
        return python_value
    raise InputError(f"{name} must be {_description(annotation)}, got {shown(value)}")


def numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """An argument as an array of float64. Raises InputError for anything but numbers of a regular shape."""
    try:
        return np.array(values, dtype=np.float64, order="C")
    except (ValueError, TypeError):
        raise InputError(f"{name} must be an array of numbers, got {shown(values)}") from None


def _is_name_or_path(text: str) -> bool:
    """False for text that no file system takes as a path, and that is no name or date either."""
    return "\0" not in text and all(len(part) <= MAX_NAME for part in text.split("/"))


def _resolve(annotation: object, function: Callable[..., object]) -> object:
    """An annotation as an object; Any for names that are imported for type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)  # noqa: S307 - text of this package
    except NameError:
        return Any


_REFUSED = object()


def _convert(value: object, annotation: object) -> Any:
    """The value as the annotation asks for, or `_REFUSED`."""
    if annotation in (Any, object, ArrayLike):
        return value
    if annotation is None or annotation is types.NoneType:
        return None if value is None else _REFUSED
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _convert(value, typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _convert_union(value, typing.get_args(annotation))
    if origin is Literal:
        return value if isinstance(value, str) and value in typing.get_args(annotation) else _REFUSED
    if annotation is str and isinstance(value, date | np.datetime64):
        return str(value)
    if annotation in (bool, int, float):
        return _convert_number(value, annotation)
    if origin is not None and isinstance(origin, type):
        return _convert_container(value, origin, typing.get_args(annotation))
    if isinstance(annotation, type):
        try:
            return value if isinstance(value, annotation) else _REFUSED
        except TypeError:  # a protocol that is not checked at run time
            return value
    return value


def _convert_union(value: object, options: Sequence[object]) -> Any:
    """The value as the first option that takes it as it is, else as the first that converts it."""
    candidates = [_convert(value, option) for option in options]
    if any(python_value is value for python_value in candidates):
        return value
    return next((python_value for python_value in candidates if python_value is not _REFUSED), _REFUSED)


def _convert_number(value: object, kind: object) -> Any:
    """A bool, int or float of Python or NumPy; NaN is none."""
    if isinstance(value, bool | np.bool_):
        return bool(value) if kind is bool else _REFUSED
    if kind is bool:
        return _REFUSED
    if isinstance(value, int | np.integer):
        whole = operator.index(value)
        if kind is int:
            return whole
        return float(whole) if abs(whole) <= MAX_INTEGER else _REFUSED
    if kind is float and isinstance(value, float | np.floating) and not math.isnan(value):
        return float(value)
    return _REFUSED


def _convert_container(value: object, origin: type, parameters: Sequence[object]) -> Any:
    """A sequence or mapping with its items converted; another generic object as it is.

    Arrays and indexes are sequences too. A text is one of texts, and bytes are none.
    """
    if issubclass(origin, Sequence):
        if isinstance(value, np.ndarray) or (hasattr(value, "tolist") and not isinstance(value, np.generic)):
            value = value.tolist()
        if isinstance(value, bytes | bytearray) or (isinstance(value, str) and parameters != (str,)):
            return _REFUSED
    if not isinstance(value, origin):
        return _REFUSED
    if isinstance(value, tuple) and origin is tuple and Ellipsis not in parameters:
        return value if len(value) == len(parameters) else _REFUSED
    if isinstance(value, list | tuple) and parameters:
        return _convert_items(value, parameters[0])
    if isinstance(value, dict) and len(parameters) == 2:
        keys = _convert_items(list(value), parameters[0])
        items = _convert_items(list(value.values()), parameters[1])
        return _REFUSED if keys is _REFUSED or items is _REFUSED else dict(zip(keys, items, strict=True))
    return value


def _convert_items(values: list[Any] | tuple[Any, ...], annotation: object) -> Any:
    """A list or tuple with its items converted; the same object if none changes."""
    items = [_convert(item, annotation) for item in values]
    if any(item is _REFUSED for item in items):
        return _REFUSED
    if all(item is value for item, value in zip(items, values, strict=True)):
        return values
    return items if isinstance(values, list) else tuple(items)


def _description(annotation: object) -> str:
    """What an annotation takes, in words."""
    if annotation is None or annotation is types.NoneType:
        return "None"
    origin = typing.get_origin(annotation)
    parameters = typing.get_args(annotation)
    if origin is Annotated:
        return str(parameters[1])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_description(option) for option in parameters))
    if origin is Literal:
        return f"one of {listed([str(option) for option in parameters])}"
    kind = origin or annotation
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a dict"
    if isinstance(kind, type) and issubclass(kind, Sequence) and kind is not str:
        return f"a list of {_description(parameters[0])}" if parameters else "a list"
    if kind in _WORDS:
        return _WORDS[typing.cast("type", kind)]
    if kind is Callable:
        return "a function"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
