"""Reading and writing TOML: files to plain values, values to checked records, records to commented text."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from finrl_pod.errors import ConfigError, closest_name, did_you_mean, listed
from finrl_pod.settings.constraints import describe_settings

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_ITEMS_PER_LINE = 4
LISTS_OF_SECTIONS = ("cohorts", "groups", "strategies")  # written as sections of their own
NAMES_OF_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")  # 1.000: one, or a thousand as written in Europe


class WrittenFloat(float):
    """A float of a TOML text, with its notation: 1.000 may have been meant as a thousand."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Parse a float in TOML's notation."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def read_toml(path: Path) -> dict[str, Any]:
    """Values of a TOML file. Raises ConfigError if it cannot be read or is not TOML, naming the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no config {path}{did_you_mean(path)}") from None
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config {path} is not UTF-8 text, at byte {error.start}: save it as UTF-8") from None
    return parse_toml(text, f"config {path}")


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Values of a TOML text. Raises ConfigError if it is not TOML. source: source of the text, for messages."""
    try:
        return tomllib.loads(text, parse_float=WrittenFloat)
    except (ValueError, RecursionError) as error:  # not TOML, huge numbers, or nested too deeply
        raise ConfigError(f"{source} is not TOML: {error}") from None


def build_record(record: type[Any], values: Mapping[str, Any], source: str, *, section_name: str = "") -> Any:
    """Build a dataclass of settings from plain values, with unknown keys and wrong types refused.

    source: source of the values, for messages. section_name: dotted name of the section that `record` is, empty for the
    root. Raises ConfigError naming key and value, an unknown key with the closest known one.
    """
    from pydantic import ValidationError

    _check_types(record, values, source, [section_name] if section_name else [])
    try:
        return _validator(record).validate_python(values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [*([section_name] if section_name else []), *map(str, first["loc"])]
        key = ".".join(path)
        if first["type"] != "unexpected_keyword_argument":
            raise ConfigError(f"{source}: {key} {_rule(first)}") from None
        parent = ".".join(path[:-1])
        nested_record: Any = record
        for segment in first["loc"][:-1]:
            nested_record = (
                get_args(nested_record)[0] if isinstance(segment, int) else get_type_hints(nested_record)[segment]
            )
        setting_names = [field.name for field in dataclasses.fields(nested_record)]
        if not parent and (section := _section_of(record, key)):
            raise ConfigError(
                f"{source}: {key} is a setting of [{section}]; write it below a line [{section}]"
            ) from None
        raise ConfigError(f"{source}: unknown key {key}; {closest_key(path[-1], setting_names)}") from None


def _section_of(record: type[Any], key: str) -> str:
    """Name of the section of a record that has a setting of this name; empty if none has."""
    for name, hint in get_type_hints(record).items():
        if dataclasses.is_dataclass(hint) and key in describe_settings(hint):  # type: ignore[arg-type]
            return name
    return ""


@lru_cache(maxsize=64)  # compiling one takes milliseconds
def _validator(record: type[Any]) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(record))


def _check_types(hint: Any, value: Any, source: str, path: list[str]) -> None:
    """Raises ConfigError for values that a checker of types would convert: booleans and texts are no numbers.

    Values of unknown keys and of types that are not named here are left to the checker.
    """
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        hints = get_type_hints(hint)
        for name, item in value.items():
            if name in hints:
                _check_types(hints[name], item, source, [*path, name])
    elif get_origin(hint) is tuple and isinstance(value, list | tuple):
        (item_type, *other_types) = get_args(hint)
        is_repeated = other_types == [Ellipsis]
        for i, item in enumerate(value):
            if is_repeated or i <= len(other_types):
                _check_types(item_type if is_repeated or i == 0 else other_types[i - 1], item, source, [*path, str(i)])
    elif isinstance(value, bool) and int in get_args(hint) and bool not in get_args(hint):
        raise ConfigError(f"{source}: {'.'.join(path)} must be {NAMES_OF_TYPES[int]} or text, got {_value_text(value)}")
    elif hint in NAMES_OF_TYPES:
        is_bool = isinstance(value, bool)
        fits = {
            bool: is_bool,
            int: isinstance(value, int | float) and not is_bool and value == value // 1,
            float: isinstance(value, int | float) and not is_bool,
            str: isinstance(value, str),
        }
        if not fits[hint]:
            fix = f': write "{value}"' if hint is str and isinstance(value, date) else ""
            raise ConfigError(
                f"{source}: {'.'.join(path)} must be {NAMES_OF_TYPES[hint]}, got {_value_text(value)}{fix}"
            )
        if hint is int and isinstance(value, WrittenFloat) and THOUSANDS.fullmatch(value.text):
            thousands = value.text.replace(".", "")
            raise ConfigError(
                f"{source}: {'.'.join(path)} must be a whole number, got {value.text}: write {thousands}, or "
                f"{value:.0f} without decimals"
            )


def _rule(error: Any) -> str:
    """What a value must be, of an error of pydantic's."""
    kind = error["type"]
    context = error.get("ctx", {})
    value = error["input"]
    if kind == "missing":
        return "is missing; add it"
    rules = {
        "finite_number": "a finite number",
        "literal_error": f"one of {context.get('expected', '')}",
        "tuple_type": "a list",
        "dataclass_type": "a section with settings",
        "dict_type": "a section with settings",
        "int_from_float": NAMES_OF_TYPES[int],
        "too_long": f"a list of at most {context.get('max_length')} values",
        "too_short": f"a list of at least {context.get('min_length')} values",
    }
    if kind == "tuple_type" and isinstance(value, str):
        return f"must be a list, got {_value_text(value)}: write [{value_text(value)}]"
    return (
        f"must be {rules[kind]}, got {_value_text(value)}"
        if kind in rules
        else f"is not valid, got {_value_text(value)}"
    )


def _value_text(value: Any) -> str:
    return value_text(value) if isinstance(value, bool) else str(value) if isinstance(value, date) else repr(value)


# Settings by their names in Stable-Baselines3 and CleanRL, as in docs/from-stable-baselines3-and-cleanrl.md.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "n_steps": ("horizon",), "num_steps": ("horizon",), "batch_size": ("minibatches",),
    "num_minibatches": ("minibatches",), "n_epochs": ("epochs",), "update_epochs": ("epochs",),
    "clip_coef": ("clip_range",), "ent_coef": ("entropy_coefficient", "temperature"),
    "vf_coef": ("value_coefficient",), "anneal_lr": ("learning_rate_schedule",), "net_arch": ("hidden",),
    "activation_fn": ("activation",), "ortho_init": ("orthogonal_init",), "policy_frequency": ("policy_delay",),
}  # fmt: skip


def other_name(name: str, setting_names: Collection[str]) -> str | None:
    """The setting that other libraries call `name`, if there is one."""
    return next((x for x in OTHER_NAMES.get(name, ()) if x in setting_names), None)


def closest_key(name: str, setting_names: Iterable[str]) -> str:
    """A hint for an unknown name: "did you mean X?", or the list of known names."""
    names = list(setting_names)
    close = other_name(name, names) or closest_name(name, names)
    return f"did you mean {close}?" if close else f"known are {listed(names)}"


def record_lines(record: Any, names: Container[str] | None = None) -> Iterator[str]:
    """Commented TOML of the plain settings of a record, nested records left out: `name = value  # comment (choices)`.

    names: names of the settings; None for all.
    """
    for item in describe_settings(type(record)).values():
        value = getattr(record, item.name)
        if (
            (names is not None and item.name not in names)
            or dataclasses.is_dataclass(value)
            or item.name in LISTS_OF_SECTIONS
        ):
            continue
        comment = item.comment + (f" ({' | '.join(item.choices)})" if len(item.choices) > 1 else "")
        text = f"{item.name} = {value_text(value)}"
        if "\n" in text:
            yield f"# {comment}"
            yield text
        else:
            yield f"{text}  # {comment}"


def value_text(value: object) -> str:
    """A value in TOML's notation. Raises TypeError for a type without one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:_}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        items = [value_text(item) for item in value]
        if len(items) > MAX_ITEMS_PER_LINE:
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [f"{name} = {value_text(item)}" for name, item in vars(value).items()]
        return f"{{{', '.join(items)}}}"
    raise TypeError(f"no TOML for {type(value).__name__}")
