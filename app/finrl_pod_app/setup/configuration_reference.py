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
TYPE_NAMES = {"str": "text", "bool": "`true` `false`", "float": "number", "int": "whole number"}
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
            blocks += [f"### [{name}]\n\n{item.comment}\n", _section_table(RunConfig, name)]
    blocks += [
        "### [agent] and [[cohorts]]\n\n`algorithm` selects the learning algorithm; each has its own settings. "
        "`[[cohorts]]` adds pods of another algorithm or other settings, with the same keys.\n",
        _agent_table(),
        "## Paper trading\n\nSee [paper trading](paper-trading.md).\n",
        _table(_plain_settings(PaperConfig)),
        "### [[strategies]] of the daemon\n\nSeveral strategies in one account.\n",
        _table(describe_settings(StrategyConfig).values()),
    ]
    for name, item in describe_settings(PaperConfig).items():
        if item.default is None:
            blocks += [f"### [{name}] of the daemon\n\n{item.comment}\n", _section_table(PaperConfig, name)]
    return "\n".join(blocks)


def _section_table(config: type[Any], name: str) -> str:
    return _table(describe_settings(type(getattr(config(), name))).values())


def _plain_settings(config: type[Any]) -> Iterable[Setting]:
    """Settings outside of any section."""
    settings: Mapping[str, Setting] = describe_settings(config)
    return [
        item for item in settings.values() if item.default is not None and item.name not in ("cohorts", "strategies")
    ]


def _table(settings: Iterable[Setting], defaults: Mapping[str, str] | None = None) -> str:
    """Markdown table of settings. defaults: texts of their defaults by name."""
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for item in settings:
        text = value_text(item.default).replace("\n", " ")
        default = f"`{text}`" if len(text) <= MAX_DEFAULT_LENGTH else f"{len(item.default)} items, see `init`"
        if defaults is not None:
            default = defaults[item.name]
        choices = " ".join(f"`{choice}`" for choice in item.choices)
        allowed = choices or (item.constraint.description if item.constraint else TYPE_NAMES.get(item.type, "list"))
        lines.append(f"| `{item.name}` | {default} | {allowed} | {item.comment.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def _agent_table() -> str:
    """Settings of all algorithms in one table; the default column names the algorithms that have the setting."""
    algorithms_by_default: dict[str, dict[str, list[str]]] = {}  # setting -> default -> algorithms
    settings: dict[str, Setting] = {}
    for algorithm in ALGORITHMS.values():
        for name, item in describe_settings(algorithm.config_class).items():
            settings.setdefault(name, item)
            algorithms_by_default.setdefault(name, {}).setdefault(value_text(item.default), []).append(algorithm.name)
    del settings["algorithm"]
    defaults = {
        name: "; ".join(f"`{default}`{_algorithm_names(algorithms)}" for default, algorithms in by_default.items())
        for name, by_default in algorithms_by_default.items()
    }
    return _table(settings.values(), defaults)


def _algorithm_names(algorithms: Sequence[str]) -> str:
    """The algorithms behind a default: empty for all of them, and the exceptions if these are few."""
    exceptions = [name for name in ALGORITHMS if name not in algorithms]
    if not exceptions:
        return ""
    return f" all but {', '.join(exceptions)}" if len(exceptions) <= MAX_EXCEPTIONS else f" {', '.join(algorithms)}"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
