"""Where the agents of a generation come from, and how their hyperparameters are drawn and perturbed."""

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

# How far a fresh draw may lie from the config's value: a factor, a smaller one for what is sensitive, and bounds. Of
# these settings an algorithm is searched over those that it has.
RATE_FACTOR = 3.0
NARROW = 0.37  # of the logarithm of that factor
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
    """The settings of an algorithm that may change."""
    return tuple(name for name in BOUNDS if hasattr(config, name))


def configured(config: AgentConfig) -> dict[str, float]:
    """The config's own values of what may change."""
    return {name: float(getattr(config, name)) for name in searched(config)}


def draw(config: AgentConfig, stream: np.random.Generator) -> dict[str, float]:
    """A fresh choice: rates log-uniform within a factor of 3 of the config's, the sensitive ones within 1.5.

    discount and gae_lambda are drawn through their horizons 1 / (1 - x), which is where they act.
    """
    centre = configured(config)
    spread = math.log(RATE_FACTOR)
    values = {
        name: _move(name, value, math.exp(stream.uniform(-spread, spread) * (NARROW if name in SENSITIVE else 1.0)))
        for name, value in centre.items()
    }
    return values


def perturb(
    values: Mapping[str, float], factor: float, resample: float, config: AgentConfig, stream: np.random.Generator
) -> dict[str, float]:
    """Each value multiplied or divided by `factor` at even odds, or with probability `resample` drawn anew."""
    fresh = draw(config, stream)
    moved = {}
    for name in searched(config):
        up, anew = stream.random() < 0.5, stream.random() < resample
        moved[name] = fresh[name] if anew else _move(name, values[name], factor if up else 1 / factor)
    return moved


def _move(name: str, value: float, factor: float) -> float:
    """A value times a factor, or its horizon times the factor, held within its bounds."""
    low, high = BOUNDS[name]
    # A horizon without end is brought to the longest that is drawn: it could not be multiplied.
    moved = 1 - (1 - min(value, high)) / factor if name in HORIZONS else value * factor
    return min(max(moved, low), high)


@dataclass(frozen=True)
class SlotInit:
    """How the agent of a slot begins: kind "fresh", "continue" (its own last state) or "inherit" (another's)."""

    slot: int
    kind: Literal["fresh", "continue", "inherit"]
    parent: str | None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


def initial_slots(agent: AgentConfig, slots: Sequence[int], seed: int) -> list[SlotInit]:
    """A cohort's first generation: its first slot has the config's own hyperparameters, the others draw theirs."""
    slot_inits = [SlotInit(slots[0], "fresh", None, configured(agent))]
    for slot in slots[1:]:
        slot_inits.append(SlotInit(slot, "fresh", None, draw(agent, _stream(seed, slot, 0))))
    return slot_inits


def next_slots(
    agent: AgentConfig,
    tournament: TournamentConfig,
    seed: int,
    generation: int,
    leaderboard: Leaderboard,
    current: Sequence[Score],
) -> list[SlotInit]:
    """A cohort's next generation from its part of the leaderboard and the scores of its slots, which have just ended.

    The worst slots are refilled: `fresh` of them anew, then `inherit` from the leaderboard's upper half, weights and
    optimiser included, with perturbed hyperparameters; the others go on as they are. Shares of the slots are rounded
    down. A slot whose score is not a number is always refilled. A cohort that has nobody left on the leaderboard breeds
    from the upper half of its own slots.
    """
    ranked = sorted(current, key=lambda s: (-s.score if np.isfinite(s.score) else np.inf, s.id))
    pods = len(current)
    anew, heirs = _whole(tournament.reinit_fraction * pods), _whole(tournament.exploit_fraction * pods)
    broken = sum(not np.isfinite(s.score) for s in ranked)
    pool = leaderboard.scores or tuple(score for score in ranked if np.isfinite(score.score))
    parents = pool[: max(1, len(pool) // 2)]
    slot_inits: list[SlotInit] = []
    for place, score in enumerate(ranked):
        stream = _stream(seed, score.slot, generation)
        from_bottom = pods - 1 - place
        if from_bottom < anew or (not parents and not np.isfinite(score.score)):
            slot_inits.append(SlotInit(score.slot, "fresh", None, draw(agent, stream)))
        elif from_bottom < max(anew + heirs, broken):
            parent = parents[int(stream.integers(len(parents)))]
            changed = perturb(
                parent.hyperparameters, tournament.perturb_factor, tournament.resample_probability, agent, stream
            )
            slot_inits.append(SlotInit(score.slot, "inherit", parent.id, changed))
        else:
            slot_inits.append(SlotInit(score.slot, "continue", score.id, score.hyperparameters))
    return sorted(slot_inits, key=lambda slot_init: slot_init.slot)


def _whole(share: float) -> int:
    """Rounded down, but 0.29 * 100 = 28.999... is 29."""
    return int(share + 1e-9)


def _stream(seed: int, slot: int, generation: int) -> np.random.Generator:
    return np.random.default_rng(random.key(seed, slot, f"generator {generation}"))
