"""Validation of tournament settings."""

from __future__ import annotations

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import between, check_settings, check_value
from finrl_pod.settings.run import TournamentConfig


def check(config: TournamentConfig, cohorts: int = 1) -> None:
    """Raises ConfigError for a setting out of its range. cohorts: number of cohorts that share the pods."""
    check_settings("tournament.", config)
    check_value("tournament.", config, "champion", config.champion, between(1, config.leaderboard))
    if config.exploit_fraction + config.reinit_fraction > 1 + 1e-9:
        raise ConfigError(
            "tournament.exploit_fraction and tournament.reinit_fraction may add up to 1 at most, got "
            f"{config.exploit_fraction:g} and {config.reinit_fraction:g}; lower one of them"
        )
    if config.pods < cohorts:
        raise ConfigError(
            f"tournament.pods must be at least {cohorts}, one per cohort including [agent], got {config.pods}; "
            "increase it or remove cohorts"
        )
