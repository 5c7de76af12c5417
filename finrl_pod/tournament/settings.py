"""What a tournament asks of its settings."""

from __future__ import annotations

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import SHARE, Range, at_least, check_ranges
from finrl_pod.settings.run import TournamentConfig


def check(config: TournamentConfig, cohorts: int = 1) -> None:
    """Raises ConfigError for a setting out of its range. cohorts: among which the pods are dealt out."""
    ranges = {
        **dict.fromkeys(("pods", "generations", "samples_per_generation", "leaderboard"), at_least(1)),
        **dict.fromkeys(("exploit_fraction", "reinit_fraction"), SHARE),
        "perturb_factor": at_least(1),
        "resample_probability": SHARE,
        "champion": Range(
            f"1 to tournament.leaderboard, which is {config.leaderboard}", lambda x: 1 <= x <= config.leaderboard
        ),
        "seconds": at_least(0),
    }
    check_ranges("tournament", config, ranges)
    if config.exploit_fraction + config.reinit_fraction > 1 + 1e-9:
        raise ConfigError(
            "tournament.exploit_fraction and tournament.reinit_fraction may add up to 1 at most, got "
            f"{config.exploit_fraction:g} and {config.reinit_fraction:g}; lower one of them"
        )
    if config.pods < cohorts:
        raise ConfigError(
            f"tournament.pods must be at least the number of cohorts, [agent] among them, which is {cohorts}, "
            f"got {config.pods}; take more pods or fewer cohorts"
        )
