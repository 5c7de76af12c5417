"""Initial state of the slots of a generation: new, continued or copied from a better agent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from finrl_pod import random
from finrl_pod.settings.run import AgentConfig, TournamentConfig
from finrl_pod.tournament.hyperparameters import Search, config_values, perturb, sample_hyperparameters
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.ranking import Comparison, PastScore
from finrl_pod.types import Floats, Score

PERTURB_FACTOR = 1.25  # inherited hyperparameters are multiplied or divided by it
RESAMPLE_PROBABILITY = 0.1  # of sampling an inherited hyperparameter again instead


@dataclass(frozen=True)
class SlotInit:
    """How the agent of a slot starts a generation.

    kind: "reinit" with new weights, "continue" from its last state, "exploit" from the state of another agent.
    """

    slot: int
    kind: Literal["reinit", "continue", "exploit"]
    parent: str | None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


def initial_slots(agent: AgentConfig, slots: Sequence[int], seed: int, *, search: Search = "full") -> list[SlotInit]:
    """First generation of a cohort: the first slot uses the hyperparameters of the config, the others sample."""
    slot_inits = [SlotInit(slots[0], "reinit", None, config_values(agent, search))]
    for slot in slots[1:]:
        values = sample_hyperparameters(agent, _rng(seed, slot, 0), search)
        slot_inits.append(SlotInit(slot, "reinit", None, values))
    return slot_inits


def next_slots(
    agent: AgentConfig,
    tournament: TournamentConfig,
    seed: int,
    generation: int,
    leaderboard: Leaderboard,
    current: Sequence[Score],
    history: Mapping[str, PastScore] | None = None,
    returns: Mapping[str, Floats] | None = None,
    max_age: float = math.inf,
) -> list[SlotInit]:
    """Next generation of a cohort from its part of the leaderboard and the last scores of its slots.

    Of the worst slots, `reinit_fraction` start from new weights and `exploit_fraction` copy an agent of the upper half
    of the leaderboard, weights and optimiser state included, with perturbed hyperparameters; the others continue. The
    numbers of slots are rounded down. Slots with a NaN score are always replaced. If the cohort has no agent on the
    leaderboard, parents are the upper half of the slots.

    history: all agents that the cohort made before, among which pods are ranked at equal age (`Comparison`). Protected
    pods continue; `exploit_fraction` is of the others. returns: validation returns by id, for the novelty.
    max_age: samples from which agents are neither continued nor copied; their slots start from new weights.
    """
    comparison = Comparison(tournament, history or {}, returns or {})
    protected_scores = [score for score in current if comparison.is_protected(score)]
    ranked_scores = comparison.ranking([score for score in current if score not in protected_scores])
    pods = len(current)
    ranked_count = len(ranked_scores)
    search = tournament.search
    reinits = _round_down(tournament.reinit_fraction * pods)
    exploits = _round_down(tournament.exploit_fraction * ranked_count)
    diverged_count = sum(not np.isfinite(s.score) for s in ranked_scores)
    pool = leaderboard.scores or tuple(score for score in ranked_scores if np.isfinite(score.score))
    pool = tuple(score for score in pool if score.samples < max_age)
    adjusted = comparison.adjusted(pool)
    order = sorted(range(len(pool)), key=lambda i: -adjusted[i])  # stable sort: ties in the order of the leaderboard
    parents = [pool[i] for i in order[: max(1, len(pool) // 2)]]
    slot_inits = [SlotInit(score.slot, "continue", score.id, score.hyperparameters) for score in protected_scores]
    for rank, score in enumerate(ranked_scores):
        rng = _rng(seed, score.slot, generation)
        from_bottom = ranked_count - 1 - rank
        is_too_old = score.samples >= max_age
        is_replaced = from_bottom < max(reinits + exploits, diverged_count)
        if from_bottom < reinits or (not parents and (is_replaced or is_too_old)) or (is_too_old and not is_replaced):
            values = sample_hyperparameters(agent, rng, search)
            slot_inits.append(SlotInit(score.slot, "reinit", None, values))
        elif is_replaced:
            parent = parents[int(rng.integers(len(parents)))]
            perturbed_values = perturb(parent.hyperparameters, PERTURB_FACTOR, RESAMPLE_PROBABILITY, agent, rng, search)
            slot_inits.append(SlotInit(score.slot, "exploit", parent.id, perturbed_values))
        else:
            slot_inits.append(SlotInit(score.slot, "continue", score.id, score.hyperparameters))
    return sorted(slot_inits, key=lambda slot_init: slot_init.slot)


def _round_down(share: float) -> int:
    """Rounded down, with a tolerance: 0.29 * 100 = 28.999... gives 29."""
    return int(share + 1e-9)


def _rng(seed: int, slot: int, generation: int) -> np.random.Generator:
    return np.random.default_rng(random.key(seed, slot, f"generator {generation}"))  # its purpose is part of results
