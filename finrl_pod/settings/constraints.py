"""Declaration of settings: default, comment and constraint of a field in one place, and the checks that follow.

@dataclass(frozen=True)
class EnvironmentConfig:
    cost_bps: float = setting(10.0, "cost of a trade in basis points of its value", at_least_and_below(0, 10_000))

Validation reads the declarations; the commented TOML, the reference page and the labels of the dashboard form come from
`describe_settings`.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from finrl_pod.errors import ConfigError

T = TypeVar("T")
_KEY = "setting"
_DESCRIBED: dict[type[Any], Mapping[str, Setting]] = {}


@dataclass(frozen=True)
class Constraint:
    """Allowed values of a setting.

    description: the rule, as it reads after "must be". check: True for allowed. low, high: bounds for input fields,
    None if unbounded; a bound itself may be excluded.
    """

    description: str
    check: Callable[[Any], bool]
    low: float | None = None
    high: float | None = None


def at_least(low: float) -> Constraint:
    """low <= x < infinity."""
    return Constraint(f"{low:,} or more", lambda x: low <= x < math.inf, low)


def between(low: float, high: float) -> Constraint:
    """low <= x <= high."""
    return Constraint(f"{low:,} to {high:,}", lambda x: low <= x <= high, low, high)


def at_least_and_below(low: float, high: float) -> Constraint:
    """low <= x < high."""
    return Constraint(f"{low:,} or more and below {high:,}", lambda x: low <= x < high, low, high)


def above_and_at_most(low: float, high: float) -> Constraint:
    """low < x <= high."""
    return Constraint(f"above {low:,} and at most {high:,}", lambda x: low < x <= high, low, high)


POSITIVE = Constraint("above 0", lambda x: x > 0, 0)  # infinity is allowed: it lifts a limit
POSITIVE_FINITE = Constraint("above 0 and finite", lambda x: 0 < x < math.inf, 0)
NOT_NEGATIVE = Constraint("0 or more", lambda x: x >= 0, 0)  # infinity is allowed
FINITE = Constraint("a finite number", math.isfinite)
FRACTION = between(0, 1)


@dataclass(frozen=True)
class Setting:
    """A declared setting. type: type in TOML, such as "float"; choices: allowed texts, empty for any."""

    name: str
    type: str
    default: Any
    comment: str
    choices: tuple[str, ...] = ()
    constraint: Constraint | None = None


def setting(default: T, comment: str, constraint: Constraint | None = None) -> T:
    """A field of a settings record, with its comment and constraint.

    A subclass may override the default with a plain value; comment and constraint are inherited.
    """
    field: T = dataclasses.field(default=default, metadata={_KEY: (comment, constraint)})
    return field


def setting_of(record: type[Any], name: str, default: T) -> T:
    """A field with the comment and the constraint of the same setting of another record, and another default."""
    return setting(default, *_declaration(record, name))


def section(record: Callable[[], T], comment: str) -> T:
    """A nested record of settings: a TOML table."""
    field: T = dataclasses.field(default_factory=record, metadata={_KEY: (comment, None)})
    return field


def describe_settings(record: type[Any]) -> Mapping[str, Setting]:
    """All settings of a record by name, in order. Raises TypeError for a field declared without `setting`."""
    if record in _DESCRIBED:
        return _DESCRIBED[record]
    hints = typing.get_type_hints(record)
    settings = {}
    for field in dataclasses.fields(record):
        comment, constraint = _declaration(record, field.name)
        hint = hints[field.name]
        is_choice = typing.get_origin(hint) is typing.Literal
        choices = tuple(map(str, typing.get_args(hint))) if is_choice else ()
        kind = "str" if is_choice else getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
        default = field.default if field.default is not dataclasses.MISSING else None
        settings[field.name] = Setting(field.name, kind, default, comment, choices, constraint)
    _DESCRIBED[record] = settings
    return settings


def _declaration(record: type[Any], name: str) -> tuple[str, Constraint | None]:
    """Comment and constraint of a field, from the class nearest to `record` that declares them."""
    for cls in record.__mro__:
        field = getattr(cls, "__dataclass_fields__", {}).get(name)
        if field is not None and _KEY in field.metadata:
            comment, constraint = field.metadata[_KEY]
            return comment, constraint
    is_ours, *bases = (cls.__module__.startswith("finrl_pod.") for cls in record.__mro__)
    if not is_ours and any(bases):
        return "", None  # a custom algorithm extends our settings: its fields may be plain
    raise TypeError(f"{record.__name__}.{name} is not declared with setting()")


def check_settings(prefix: str, config: object) -> None:
    """Raises ConfigError for the first setting of a record that violates its constraint. prefix: such as "gate."."""
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        check_setting(prefix, config, field.name, getattr(config, field.name))


def check_setting(prefix: str, config: object, name: str, value: object) -> None:
    """Check a value that may replace the one in `config`. Raises ConfigError with value, constraint and default."""
    _, constraint = _declaration(type(config), name)
    if isinstance(value, bool) and type(getattr(type(config), name, None)) in (int, float):
        raise ConfigError(f"{prefix}{name} must be a number, got {str(value).lower()}")
    choices = describe_settings(type(config))[name].choices
    if choices and str(value) not in choices and name != "algorithm":  # whose name a custom class gives
        raise ConfigError(f"{prefix}{name} must be one of {', '.join(choices)}, got {value!r:.80}")
    if constraint is not None:
        check_value(prefix, config, name, value, constraint)


def check_value(prefix: str, config: object, name: str, value: object, constraint: Constraint) -> None:
    """Check against a constraint that depends on other settings. Raises ConfigError."""
    if not constraint.check(value):
        default = getattr(type(config), name, None)
        default_text = "" if default is None else f"; the default is {default!r}"
        raise ConfigError(
            f"{prefix}{name} is out of its range, got {value!r}: it must be {constraint.description}{default_text}"
        )
