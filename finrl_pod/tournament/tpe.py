"""Hyperparameters of new agents proposed by Optuna's TPE sampler from the agents that have been scored.

Bergstra et al. 2011, "Algorithms for hyper-parameter optimization": new values are drawn where good agents are dense
and bad ones are not. Each agent counts with the score that it had when it was scored last.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

from finrl_pod.errors import SetupError
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.tournament.hyperparameters import BOUNDS, FROM_ZERO, HORIZONS, Search, configured, log_spread

ZERO_MARGIN = 1.0  # below the logarithm of a hyperparameter's smallest value above 0: stands for 0


def propose(
    config: AgentConfig, search: Search, trials: Sequence[tuple[Mapping[str, float], float]], seed: int
) -> dict[str, float]:
    """Searched hyperparameters of a new agent.

    trials: hyperparameters and score of earlier agents, the higher the better; diverged ones count as the worst. Raises
    SetupError if Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise SetupError(
            'tournament.sampler = "tpe" needs Optuna: pip install "finrl-pod[tpe]", or use "random"'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = _ranges(config, search)
    if not ranges:
        return {}
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(low, high) for name, (low, high) in ranges.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    finite = [score for _, score in trials if math.isfinite(score)]
    for values, score in trials:
        params = {
            name: min(max(_coordinate(name, values[name]), low), high)
            for name, (low, high) in ranges.items()
            if name in values
        }
        if finite and params.keys() == ranges.keys():
            value = score if math.isfinite(score) else min(finite)
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    chosen = study.ask(distributions).params
    return {name: _value(name, chosen[name]) for name in ranges}


def _ranges(config: AgentConfig, search: Search) -> dict[str, tuple[float, float]]:
    """Range of each coordinate: that of random samples."""
    ranges = {}
    for name, value in configured(config, search).items():
        if name in FROM_ZERO and value == 0:
            least, most = FROM_ZERO[name]
            ranges[name] = (math.log(least) - ZERO_MARGIN, math.log(most))
            continue
        low, high = BOUNDS[name]
        centre, spread = _coordinate(name, value), log_spread(name)
        ranges[name] = (
            max(centre - spread, _coordinate(name, low)),
            max(min(centre + spread, _coordinate(name, high)), max(centre - spread, _coordinate(name, low))),
        )
    return ranges


def _coordinate(name: str, value: float) -> float:
    """Logarithm of a value, or of the horizon of a discount factor."""
    if name in HORIZONS:
        return -math.log(1 - min(value, BOUNDS[name][1]))
    return math.log(value) if value > 0 else math.log(FROM_ZERO.get(name, (1e-12, 1))[0]) - ZERO_MARGIN


def _value(name: str, coordinate: float) -> float:
    if name in HORIZONS:
        return 1 - math.exp(-coordinate)
    if name in FROM_ZERO and coordinate < math.log(FROM_ZERO[name][0]):
        return 0.0
    return math.exp(coordinate)
