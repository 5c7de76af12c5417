"""What algorithms with a replay ask of their settings."""

from __future__ import annotations

from typing import Any

from finrl_pod.errors import ConfigError
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.settings.constraints import at_least, between, check_ranges

MOST_UPDATES = 1_000_000  # in one go, which cannot be stopped
RANGES = {
    **dict.fromkeys(("horizon", "batch", "replay", "target_interval"), at_least(1)),
    "updates": between(1, MOST_UPDATES),
    "warmup": at_least(0),
}


def check(config: OffPolicyConfig, env: Any) -> None:
    """Raises ConfigError for a shared setting that is out of its range or does not fit the environment."""
    check_ranges("agent", config, RANGES)
    accounts = env.accounts if hasattr(env, "market") else 1
    if config.batch > config.replay:
        raise ConfigError(
            f"agent.batch must be at most agent.replay, got {config.batch} and {config.replay}; "
            "take a smaller batch or a larger replay"
        )
    if config.batch % accounts:
        raise ConfigError(
            f"agent.batch must be a multiple of environment.group, got {config.batch} and {accounts}: "
            "what is learned from is a whole group at a time"
        )
    if config.replay < env.envs:
        raise ConfigError(
            f"agent.replay must hold a step of all {env.envs} environments, got {config.replay}; "
            "take a larger replay or fewer environments"
        )
