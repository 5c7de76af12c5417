"""Command-line flags of a benchmark: one for each field of its settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from finrl_pod.errors import ConfigError

SettingsT = TypeVar("SettingsT")


class Parser(argparse.ArgumentParser):
    """Raises ConfigError for invalid arguments, so that they end with a message and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def add_flags(parser: argparse.ArgumentParser, defaults: Any, unused_flags: Sequence[str] = ()) -> None:
    """Add a flag for each field of a settings record, except for the unused ones.

    A Literal gives choices, bool a switch, tuple[int, ...] numbers such as 64,64, any other tuple several words.
    """
    hints = get_type_hints(type(defaults))
    for field in fields(defaults):
        if field.name in unused_flags:
            continue
        default = getattr(defaults, field.name)
        hint = hints[field.name]
        if type(None) in get_args(hint):
            hint = next(x for x in get_args(hint) if x is not type(None))
        options: dict[str, Any] = {"default": default, "help": f"default {default}"}
        if hint is bool:
            options = {"action": "store_true"}
        elif get_origin(hint) is Literal:
            options["choices"] = get_args(hint)
        elif get_origin(hint) is tuple and get_args(hint)[0] is int:
            options["type"] = _numbers
        elif get_origin(hint) is tuple:
            item = get_args(hint)[0]
            choices = get_args(item) if get_origin(item) is Literal else field.metadata.get("choices")
            options |= {"action": "extend", "nargs": "+", "default": None, "choices": choices}
            options["type"] = item if item is float else str
        else:
            options["type"] = hint
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)


def settings_of(defaults: SettingsT, options: argparse.Namespace) -> SettingsT:
    changes = {}
    for field in fields(defaults):  # type: ignore[arg-type]
        value = getattr(options, field.name, None)
        if value is not None:
            changes[field.name] = tuple(value) if isinstance(value, list) else value
    return replace(defaults, **changes)  # type: ignore[type-var]


def check_minimum(settings: Any, **minimum: int) -> None:
    """Raise ConfigError for the first setting below its minimum."""
    for name, smallest in minimum.items():
        value = getattr(settings, name)
        if value is not None and value < smallest:
            raise ConfigError(f"--{name} must be at least {smallest}, got {value}")


def _numbers(text: str) -> tuple[int, ...]:
    """64,64 -> (64, 64)."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"widths must be numbers such as 64,64, got {text!r}") from None
