"""What a tournament asks of its settings."""

from __future__ import annotations

import math

from finrl_pod.config import TournamentConfig, check_ranges
from finrl_pod.errors import ConfigError


def check(config: TournamentConfig, cohorts: int = 1) -> None:
    """Raises ConfigError for a setting out of its range. cohorts: among which the pods are dealt out."""
    ranges = {
        "pods": config.pods >= 1,
        "generations": config.generations >= 1,
        "samples": config.samples >= 1,
        "leaderboard": config.leaderboard >= 1,
        "inherit": 0 <= config.inherit <= 1,
        "fresh": 0 <= config.fresh <= 1,
        "perturb": 1 <= config.perturb < math.inf,
        "resample": 0 <= config.resample <= 1,
        "champion": 1 <= config.champion <= config.leaderboard,
        "seconds": 0 <= config.seconds < math.inf,
    }
    check_ranges("tournament", config, ranges)
    if config.inherit + config.fresh > 1 + 1e-9:
        raise ConfigError(
            f"tournament.inherit and tournament.fresh are shares of the pods and may add up to 1 at most, got "
            f"{config.inherit:g} and {config.fresh:g}; lower one of them"
        )
    if config.pods < cohorts:
        raise ConfigError(
            f"tournament.pods must be at least the number of cohorts, [agent] among them, which is {cohorts}, "
            f"got {config.pods}; take more pods or fewer cohorts"
        )
