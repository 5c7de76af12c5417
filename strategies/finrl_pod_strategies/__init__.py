"""Strategies: baselines, trained agents, schedules of strategies, and strategies from users' files.

The names of the baselines are here, so that a misspelt one is refused before torch is loaded.
"""

from __future__ import annotations

from finrl_pod.errors import InputError
from finrl_pod.user_files import check_file_defines, closest_part, is_custom, is_file_reference

BASELINE_NAMES = (
    "equal_weight",
    "equal_weight_buy_and_hold",
    "index",
    "inverse_volatility",
    "minimum_variance",
    "mean_variance",
    "hierarchical_risk_parity",
    "equal_risk_contribution",
    "momentum_12_1",
    "savings_plan",
)
SEEDED_BASELINE_NAMES = ("random_weights",)


def check_strategy_name(name: str) -> None:
    """Check the name of a strategy: a baseline, file.py:Class, or package.module:Class.

    Raises InputError for an unknown name, a missing file, and a file without the class.
    """
    names = (*BASELINE_NAMES, *SEEDED_BASELINE_NAMES)
    if is_file_reference(name):
        check_file_defines(name, f"the strategy {name}")
    elif name not in names and not is_custom(name):
        if name.endswith(".py"):
            raise InputError(f"strategy {name!r} is a file: add the name of its class, as {name}:MyStrategy")
        if "/" in name or "\\" in name:
            raise InputError(
                f"there is no run and no saved agent {name!r}: give a path that exists, or the name of a strategy"
            )
        raise InputError(f"unknown strategy {name!r}; {closest_part('strategies', name, names)}")
