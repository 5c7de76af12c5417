"""Initial state of the slots of a generation, and sampling and perturbation of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from finrl_pod import random
from finrl_pod.settings.run import AgentConfig, TournamentConfig
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.types import Score

# Hyperparameters that are searched, if the algorithm has them, and their bounds. Samples are log-uniform within
# RATE_FACTOR of the config's value, sensitive ones within RATE_FACTOR ** SENSITIVE_EXPONENT.
RATE_FACTOR = 3.0
SENSITIVE_EXPONENT = 0.37
BOUNDS: Mapping[str, tuple[float, float]] = {
    "learning_rate": (1e-5, 1e-1),
    "gamma": (0.0, 0.999),
    "gae_lambda": (0.0, 0.999),
    "clip_range": (0.05, 0.5),
    "exploration_noise": (0.01, 0.5),
    "tau": (1e-4, 1.0),
}
HORIZONS, SENSITIVE = ("gamma", "gae_lambda"), ("clip_range", "exploration_noise")


def searched(config: AgentConfig) -> tuple[str, ...]:
    """Names of the hyperparameters that are searched for a config."""
    return tuple(name for name in BOUNDS if hasattr(config, name))


def configured(config: AgentConfig) -> dict[str, float]:
    """The config's values of the searched hyperparameters."""
    return {name: float(getattr(config, name)) for name in searched(config)}


def sample_hyperparameters(config: AgentConfig, stream: np.random.Generator) -> dict[str, float]:
    """Sample hyperparameters: log-uniform within a factor of 3 of the config's values, sensitive ones within 1.5.

    gamma and gae_lambda are sampled through their horizons 1 / (1 - x).
    """
    centre = configured(config)
    spread = math.log(RATE_FACTOR)
    values = {
        name: _move(
            name, value, math.exp(stream.uniform(-spread, spread) * (SENSITIVE_EXPONENT if name in SENSITIVE else 1.0))
        )
        for name, value in centre.items()
    }
    return values


def perturb(
    values: Mapping[str, float], factor: float, resample: float, config: AgentConfig, stream: np.random.Generator
) -> dict[str, float]:
    """Multiply or divide each value by `factor` at even odds, or resample it with probability `resample`."""
    sampled = sample_hyperparameters(config, stream)
    moved = {}
    for name in searched(config):
        up, resampled = stream.random() < 0.5, stream.random() < resample
        moved[name] = sampled[name] if resampled else _move(name, values[name], factor if up else 1 / factor)
    return moved


def _move(name: str, value: float, factor: float) -> float:
    """Value times factor, or for discount factors the horizon times factor, clamped to the bounds."""
    low, high = BOUNDS[name]
    # An infinite horizon is limited first: it cannot be multiplied.
    moved = 1 - (1 - min(value, high)) / factor if name in HORIZONS else value * factor
    return min(max(moved, low), high)


@dataclass(frozen=True)
class SlotInit:
    """How the agent of a slot starts a generation.

    kind: "reinit" with new weights, "continue" from its own last state, "exploit" from another agent's.
    """

    slot: int
    kind: Literal["reinit", "continue", "exploit"]
    parent: str | None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


def initial_slots(agent: AgentConfig, slots: Sequence[int], seed: int) -> list[SlotInit]:
    """First generation of a cohort: the first slot uses the config's hyperparameters, the others sample theirs."""
    slot_inits = [SlotInit(slots[0], "reinit", None, configured(agent))]
    for slot in slots[1:]:
        slot_inits.append(SlotInit(slot, "reinit", None, sample_hyperparameters(agent, _stream(seed, slot, 0))))
    return slot_inits


def next_slots(
    agent: AgentConfig,
    tournament: TournamentConfig,
    seed: int,
    generation: int,
    leaderboard: Leaderboard,
    current: Sequence[Score],
) -> list[SlotInit]:
    """Next generation of a cohort from its part of the leaderboard and the last scores of its slots.

    Of the worst slots, `reinit_fraction` start from new weights and `exploit_fraction` copy an agent of the upper half
    of the leaderboard, weights and optimiser state included, with perturbed hyperparameters; the others continue. The
    numbers of slots are rounded down. Slots with a NaN score are always replaced. If the cohort has no agent on the
    leaderboard, parents are the upper half of the cohort's slots.
    """
    ranked = sorted(current, key=lambda s: (-s.score if np.isfinite(s.score) else np.inf, s.id))
    pods = len(current)
    reinits, exploits = _round_down(tournament.reinit_fraction * pods), _round_down(tournament.exploit_fraction * pods)
    diverged = sum(not np.isfinite(s.score) for s in ranked)
    pool = leaderboard.scores or tuple(score for score in ranked if np.isfinite(score.score))
    parents = pool[: max(1, len(pool) // 2)]
    slot_inits: list[SlotInit] = []
    for rank, score in enumerate(ranked):
        stream = _stream(seed, score.slot, generation)
        from_bottom = pods - 1 - rank
        if from_bottom < reinits or (not parents and not np.isfinite(score.score)):
            slot_inits.append(SlotInit(score.slot, "reinit", None, sample_hyperparameters(agent, stream)))
        elif from_bottom < max(reinits + exploits, diverged):
            parent = parents[int(stream.integers(len(parents)))]
            changed = perturb(
                parent.hyperparameters, tournament.perturb_factor, tournament.resample_probability, agent, stream
            )
            slot_inits.append(SlotInit(score.slot, "exploit", parent.id, changed))
        else:
            slot_inits.append(SlotInit(score.slot, "continue", score.id, score.hyperparameters))
    return sorted(slot_inits, key=lambda slot_init: slot_init.slot)


def _round_down(share: float) -> int:
    """Rounded down, with a tolerance: 0.29 * 100 = 28.999... gives 29."""
    return int(share + 1e-9)


def _stream(seed: int, slot: int, generation: int) -> np.random.Generator:
    return np.random.default_rng(random.key(seed, slot, f"generator {generation}"))
