"""Settings of earlier versions: former names, and the values of settings that they did not have."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.settings.algorithm_configs import RENAMED_KEYS as AGENT_RENAMED_KEYS

# Former keys of each section -> their names now; the former ones are refused with a hint.
RENAMED_KEYS: Mapping[str, Mapping[str, str]] = {
    "environment": {"order": "buy_allocation", "exit_return": "delisting_return", "lot": "trade_fraction"},
    "agent": AGENT_RENAMED_KEYS,
    "tournament": {
        "samples": "samples_per_generation",
        "inherit": "exploit_fraction",
        "fresh": "reinit_fraction",
        "perturb": "perturb_factor",
        "resample": "resample_probability",
    },
    "gate": {
        "drawdown": "max_drawdown",
        "break_even": "break_even_cost_multiple",
        "blocks": "pbo_blocks",
    },
}
# Former keys that have no successor -> what to do instead; refused with this hint, dropped by `rename_former_keys`.
_ONE_TEST = "the gate has one test of validation and test together, see gate.significance_level"
REMOVED_KEYS: Mapping[str, Mapping[str, str]] = {
    "gate": dict.fromkeys(
        (
            *("min_dsr", "max_pbo", "max_pbo_loss_probability", "min_psr", "superiority_confidence", "min_excess_bps"),
            *("deflated_sharpe", "overfitting", "overfitting_loss", "confidence", "lead", "excess"),
        ),
        _ONE_TEST,
    ),
}

# Settings that earlier versions did not have, and the values that say what those versions did. A saved run without them
# gets these values, not today's defaults, and keeps its hash. Those of "agent" hold for every cohort.
EARLIER_VALUES: Mapping[str, Mapping[str, Any]] = {
    "agent": {"encoder": "none", "lookback": 32, "encoder_size": 16, "dropout": 0.0, "weight_decay": 0.0,
        "l1_penalty": 0.0},
    "augmentation": {
        "worlds": 1, "equal_means": False, "bagging_blocks": 0, "bootstrap_block": 0.0, "asset_share": 1.0,
        "feature_noise": 0.0,
    },
    "environment": {"half_spread": "constant", "cost_model": "", "source": "", "evaluation_episodes": 32},
    "mandate": {
        "base": "none", "tilt": 0.5, "trade_speed": 0.05, "max_weight": 1.0, "max_turnover": 0.0, "decide_every": 1,
        "volatility_target": 0.0, "max_tracking_error": 0.0,
    },
    "tournament": {"max_root_share": 1.0, "search": "narrow", "selection": "best", "inner_folds": 5,
        "protected_generations": 0, "novelty": 0.0, "scheduler": "generational", "batch_pods": 0,
        "update_seconds": 0.0, "total_samples": 0, "plateau": 0, "halving": 0, "sampler": "random"},
}  # fmt: skip


def without_earlier_values(values: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Values without those that equal the earlier ones."""
    return {key: item for key, item in values.items() if key not in earlier or item != earlier[key]}


def rename_former_keys(value: Any) -> Any:
    """Copy of a JSON or TOML document with former setting names replaced: in sections, cohorts and hyperparameters.

    Settings that were removed are left out.
    """
    if isinstance(value, list):
        return [rename_former_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    document = {}
    for key, item in value.items():
        item = rename_former_keys(item)
        names = AGENT_RENAMED_KEYS if key in ("hyperparameters", "cohorts") else RENAMED_KEYS.get(key, {})
        if key == "cohorts" and isinstance(item, list):
            item = [_renamed(cohort, names) for cohort in item]
        document[key] = _renamed(item, names, REMOVED_KEYS.get(key, {}))
    return document


def check_current(document: Mapping[str, Any], path: Path) -> None:
    """Raises RunError if a document of a run has setting names of an earlier version. path: to convert."""
    if rename_former_keys(document) != document:
        raise RunError(
            f"{path} was written by an earlier version; convert it with: finrl-pod migrate {shlex.quote(str(path))}"
        )


def _renamed(table: Any, names: Mapping[str, str], removed: Collection[str] = ()) -> Any:
    if not isinstance(table, dict):
        return table
    return {names.get(key, key): item for key, item in table.items() if key not in removed}
