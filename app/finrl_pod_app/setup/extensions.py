"""Custom extensions: writing a working file of each kind, and recognising the kind of an object."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.files import write_new_files
from finrl_pod.user_files import is_custom, user_object

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
FUNCTIONS = ("feature", "reward")
NEW_KINDS = ("feature", "reward", "strategy", "policy", "algorithm", "environment")
KINDS = (*NEW_KINDS, "cost", "source", "broker")
# Methods by which a class is recognised, the more special kinds first.
METHODS: Mapping[str, tuple[str, ...]] = {
    "strategy": ("target_weights",),
    "algorithm": ("iterate", "update", "member"),
    "environment": ("reset", "step"),
    "policy": ("init", "forward", "value"),
    "cost": ("cost", "slope"),
    "source": ("fetch",),
    "broker": ("submit", "cancel"),
}
TEST = '''"""TARGET keeps its contract."""

from pathlib import Path

from finrl_pod_app.setup.extension_checks import check_extension


def test_NAME_keeps_its_contract() -> None:
    target = f"{Path(__file__).with_name('FILE')}:NAME"
    assert check_extension(target, "KIND") == []
'''


@dataclass(frozen=True)
class NewFile:
    """What `write_extension` wrote. target: file.py:Name."""

    kind: str
    target: str
    file: Path
    test: Path


def write_extension(kind: str, name: str) -> NewFile:
    """Write a working extension of a kind and its contract test into the current folder.

    name: any style of name; functions become snake_case, classes CapWords. Raises ConfigError for an unknown kind, a
    name that is none, files that exist, and if they cannot be written.
    """
    if kind not in NEW_KINDS:
        raise ConfigError(
            f"KIND must be one of {', '.join(NEW_KINDS)}, got {kind!r}; docs/extending.md describes costs, sources and "
            "brokers"
        )
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"NAME must have letters, digits and _, such as my_{kind}, got {name!r}")
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    class_name = "".join(word_part[:1].upper() + word_part[1:] for word_part in name.split("_"))
    object_name = word if kind in FUNCTIONS else class_name
    file = Path(f"{word}.py")
    test = Path(f"test_{word}.py")
    source = (TEMPLATES / f"{kind}.py").read_text(encoding="utf-8")
    source = re.sub(r"\n# ruff: noqa.*\n", "", source).replace("  # noqa: ARG002", "")
    template_name = f"my_{kind}" if kind in FUNCTIONS else f"My{kind.capitalize()}"
    source = re.sub(rf"\b{template_name}\b", object_name, source).replace("FILE.py", file.name)
    check = TEST.replace("test_NAME", f"test_{word}").replace("TARGET", f"{file.name}:{object_name}")
    texts = {file: source, test: check.replace("NAME", object_name).replace("FILE", file.name).replace("KIND", kind)}
    write_new_files(texts)
    return NewFile(kind, f"{file}:{object_name}", file, test)


def how_to_use(new_file: NewFile) -> str:
    """The command or the setting that uses an extension."""
    target = new_file.target
    return {
        "feature": f'in a config: [features] names = ["{target}", ...]',
        "reward": f'in a config: [environment] reward = "{target}"',
        "strategy": f"finrl-pod backtest --strategy {target} --data NAME  # a stored panel; default: the sample",
        "policy": f'in a config: [agent] policy = "{target}"',
        "algorithm": f'in a config: [agent] algorithm = "{target}"',
        "environment": f"finrl-pod train --env {target} --algorithm ppo --steps 100000",
    }[new_file.kind]


def find_extension(target: str, kind: str | None = None) -> tuple[str, Any]:
    """Kind and object of file.py:Name or package.module:Name.

    Raises InputError for an unknown kind, a file that cannot be used, and an object of no known kind.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not is_custom(target):
        raise InputError(f"a custom part is named file.py:Name or package.module:Name, got {target!r}")
    extension = user_object(target, f"the check of {target}")
    return kind or kind_of(extension, target), extension


def kind_of(extension: object, target: str) -> str:
    """The kind of an object: functions by their parameter, classes by their methods. Raises InputError for none."""
    if isinstance(extension, type):
        for kind, methods in METHODS.items():
            if all(callable(getattr(extension, method, None)) for method in methods):
                return kind
        methods_by_kind = "; ".join(f"{kind}: {', '.join(methods)}" for kind, methods in METHODS.items())
        raise InputError(
            f"{target} has the methods of no extension ({methods_by_kind}); add them, or name its kind with --kind"
        )
    if callable(extension):
        try:
            parameters = list(inspect.signature(extension).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        if len(parameters) == 1:
            only = parameters[0]
            is_reward = "interval" in only.name.lower() or "Interval" in str(only.annotation)
            return "reward" if is_reward else "feature"
        raise InputError(
            f"{target} takes {len(parameters)} arguments; a feature takes a panel, a reward an interval: one argument"
        )
    raise InputError(
        f"{target} is {type(extension).__name__}, not a function or a class; name one that the file defines"
    )
