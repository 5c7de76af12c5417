"""What algorithms with a replay ask of their settings."""

from __future__ import annotations

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import VecEnv, group_shape
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.settings.constraints import at_least, between, check_ranges

MOST_UPDATES = 1_000_000  # in one go, which cannot be stopped
RANGES = {
    **dict.fromkeys(("horizon", "batch_size", "buffer_size", "target_interval"), at_least(1)),
    "gradient_steps": between(1, MOST_UPDATES),
    "learning_starts": at_least(0),
}


def check(config: OffPolicyConfig, env: VecEnv) -> None:
    """Raises ConfigError for a shared setting that is out of its range or does not fit the environment."""
    check_ranges("agent", config, RANGES)
    accounts = group_shape(env)[-1]
    if config.batch_size > config.buffer_size:
        raise ConfigError(
            f"agent.batch_size must be at most agent.buffer_size, got {config.batch_size} and {config.buffer_size}; "
            "take a smaller batch or a larger replay"
        )
    if config.batch_size % accounts:
        raise ConfigError(
            f"agent.batch_size must be a multiple of environment.group, got {config.batch_size} and {accounts}: "
            "what is learned from is a whole group at a time"
        )
    if config.buffer_size < env.envs:
        raise ConfigError(
            f"agent.buffer_size must hold a step of all {env.envs} environments, got {config.buffer_size}; "
            "take a larger replay or fewer environments"
        )
