"""The reference page of all settings, docs/configuration.md, from their declarations.

python -m finrl_pod_app.setup.configuration_reference > docs/configuration.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finrl_pod.paper.settings import PaperConfig, StrategyConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.constraints import Setting, describe_settings
from finrl_pod.settings.run import RunConfig
from finrl_pod.settings.toml import value_text

MAX_DEFAULT_LENGTH = 40
MAX_EXCEPTIONS = 3  # algorithms that "all but" names
INTRODUCTION = """# Configuration

Two TOML files configure finrl_pod: one for training runs, one for the paper-trading daemon. Every setting has a
default; unknown keys are refused with a suggestion of the closest known one.

- `finrl-pod init mine.toml` writes a commented run config with the most frequent settings, `--full` one with
  all; `--preset quick` or `--preset gpu` choose other sizes.
- `--set NAME=VALUE` overrides single settings: any in `tournament` and `train`, fields of `[environment]` in
  `backtest` and `sweep`.

This page is generated from the code.
"""


def reference_page() -> str:
    """Markdown of all settings: tables of name, type, default, allowed values and meaning."""
    blocks = [INTRODUCTION, "## Runs\n", _table(_plain_settings(RunConfig))]
    for name, item in describe_settings(RunConfig).items():
        if name not in ("seed", "threads", "agent", "cohorts"):
            blocks += [
                f"### [{name}]\n\n{item.comment}\n",
                _table(describe_settings(_record(RunConfig, name)).values()),
            ]
    blocks.append(
        "### [agent] and [[cohorts]]\n\n`algorithm` selects the learning algorithm; each has its own settings. "
        "`[[cohorts]]` adds pods of another algorithm or other settings, with the same keys.\n"
    )
    blocks.append(_agent_table())
    blocks += ["## Paper trading\n\nSee [paper trading](paper-trading.md).\n", _table(_plain_settings(PaperConfig))]
    strategy_settings = describe_settings(StrategyConfig)
    blocks += [
        "### [[strategies]] of the daemon\n\nSeveral strategies in one account.\n",
        _table(strategy_settings.values()),
    ]
    for name, item in describe_settings(PaperConfig).items():
        if item.default is None:
            blocks += [f"### [{name}] of the daemon\n\n{item.comment}\n"]
            blocks.append(_table(describe_settings(_record(PaperConfig, name)).values()))
    return "\n".join(blocks)


def _record(config: type[Any], name: str) -> type[Any]:
    return type(getattr(config(), name))


def _plain_settings(config: type[Any]) -> Iterable[Setting]:
    """Settings outside of any section."""
    settings: Mapping[str, Setting] = describe_settings(config)
    return [
        item for item in settings.values() if item.default is not None and item.name not in ("cohorts", "strategies")
    ]


def _table(settings: Iterable[Setting]) -> str:
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for item in settings:
        default = value_text(item.default).replace("\n", " ")
        default = f"`{default}`" if len(default) <= MAX_DEFAULT_LENGTH else f"{len(item.default)} items, see `init`"
        lines.append(f"| `{item.name}` | {default} | {_allowed_values(item)} | {item.comment.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def _agent_table() -> str:
    """Settings of all algorithms in one table; the default column names the algorithms that have the setting."""
    algorithms_by_default: dict[str, dict[str, list[str]]] = {}  # setting -> default -> algorithms
    settings: dict[str, Setting] = {}
    for algorithm in ALGORITHMS.values():
        for name, item in describe_settings(algorithm.config_class).items():
            settings.setdefault(name, item)
            algorithms_by_default.setdefault(name, {}).setdefault(value_text(item.default), []).append(algorithm.name)
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, item in settings.items():
        if name == "algorithm":
            continue
        defaults = "; ".join(
            f"`{default}`{_algorithm_names(names)}" for default, names in algorithms_by_default[name].items()
        )
        lines.append(f"| `{name}` | {defaults} | {_allowed_values(item)} | {item.comment.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def _algorithm_names(algorithms: Sequence[str]) -> str:
    """The algorithms behind a default: empty for all of them, and the exceptions if these are few."""
    exceptions = [name for name in ALGORITHMS if name not in algorithms]
    if not exceptions:
        return ""
    return f" all but {', '.join(exceptions)}" if len(exceptions) <= MAX_EXCEPTIONS else f" {', '.join(algorithms)}"


def _allowed_values(item: Setting) -> str:
    choices = " ".join(f"`{choice}`" for choice in item.choices)
    return choices or (item.constraint.description if item.constraint else _type_name(item.type))


def _type_name(kind: str) -> str:
    names = {"str": "text", "bool": "`true` `false`", "float": "number", "int": "whole number"}
    return names.get(kind, "list")


if __name__ == "__main__":
    sys.stdout.write(reference_page())
