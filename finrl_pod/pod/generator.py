"""Where the agents of a generation come from: the leaderboard, themselves, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from finrl_pod import streams
from finrl_pod.config import AgentConfig, TournamentConfig
from finrl_pod.pod.hyperparameters import configured, draw, perturb
from finrl_pod.pod.leaderboard import Leaderboard
from finrl_pod.types import Score


@dataclass(frozen=True)
class Birth:
    """How the agent of a slot begins: kind "fresh", "continue" (its own last state) or "inherit" (another's)."""

    slot: int
    kind: Literal["fresh", "continue", "inherit"]
    parent: str | None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


def first_births(agent: AgentConfig, slots: Sequence[int], seed: int) -> list[Birth]:
    """A cohort's first generation: its first slot has the config's own hyperparameters, the others draw theirs."""
    births = [Birth(slots[0], "fresh", None, configured(agent))]
    for slot in slots[1:]:
        births.append(Birth(slot, "fresh", None, draw(agent, _stream(seed, slot, 0))))
    return births


def next_births(
    agent: AgentConfig,
    tournament: TournamentConfig,
    seed: int,
    generation: int,
    leaderboard: Leaderboard,
    current: Sequence[Score],
) -> list[Birth]:
    """A cohort's next generation from its part of the leaderboard and the scores of its slots, which have just ended.

    The worst slots are refilled: `fresh` of them anew, then `inherit` from the leaderboard's upper half, weights and
    optimiser included, with perturbed hyperparameters; the others go on as they are. Shares of the slots are rounded
    down. A slot whose score is not a number is always refilled. A cohort that has nobody left on the leaderboard breeds
    from the upper half of its own slots.
    """
    ranked = sorted(current, key=lambda s: (-s.score if np.isfinite(s.score) else np.inf, s.id))
    pods = len(current)
    anew, heirs = _whole(tournament.fresh * pods), _whole(tournament.inherit * pods)
    broken = sum(not np.isfinite(s.score) for s in ranked)
    pool = leaderboard.scores or tuple(score for score in ranked if np.isfinite(score.score))
    parents = pool[: max(1, len(pool) // 2)]
    births: list[Birth] = []
    for place, score in enumerate(ranked):
        stream = _stream(seed, score.slot, generation)
        from_bottom = pods - 1 - place
        if from_bottom < anew or (not parents and not np.isfinite(score.score)):
            births.append(Birth(score.slot, "fresh", None, draw(agent, stream)))
        elif from_bottom < max(anew + heirs, broken):
            parent = parents[int(stream.integers(len(parents)))]
            changed = perturb(parent.hyperparameters, tournament.perturb, tournament.resample, agent, stream)
            births.append(Birth(score.slot, "inherit", parent.id, changed))
        else:
            births.append(Birth(score.slot, "continue", score.id, score.hyperparameters))
    return sorted(births, key=lambda birth: birth.slot)


def _whole(share: float) -> int:
    """Rounded down, but 0.29 * 100 = 28.999... is 29."""
    return int(share + 1e-9)


def _stream(seed: int, slot: int, generation: int) -> np.random.Generator:
    return np.random.default_rng(streams.key(seed, slot, f"generator {generation}"))
