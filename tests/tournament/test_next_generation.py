"""Initialisation of the slots of a generation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.settings.run import PPOConfig, TournamentConfig
from finrl_pod.tournament.hyperparameters import searched_names
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.next_generation import SlotInit, initial_slots, next_slots
from finrl_pod.types import Score
from tests.tournament.sample_scores import score

AGENT = PPOConfig()


def slot_scores(values: Sequence[float], generation: int = 0) -> list[Score]:
    return [score(f"g{generation:02d}s{i:02d}", value, slot=i, generation=generation) for i, value in enumerate(values)]


def next_inits(
    values: Sequence[float], *, seed: int = 3, generation: int = 1, board: Leaderboard | None = None, **settings: Any
) -> list[SlotInit]:
    """Slot initialisations of the generation that follows one with the scores `values`."""
    tournament = TournamentConfig(pods=len(values), **settings)
    current = slot_scores(values, generation - 1)
    board = Leaderboard(16).insert(current) if board is None else board
    return next_slots(AGENT, tournament, seed, generation, board, current)


def test_first_generation_reinitialises_all_slots_and_slot_0_uses_the_config() -> None:
    slot_inits = initial_slots(AGENT, range(4), seed=0)
    assert [(s.slot, s.kind, s.parent) for s in slot_inits] == [(i, "reinit", None) for i in range(4)]
    assert slot_inits[0].hyperparameters == {name: getattr(AGENT, name) for name in searched_names(AGENT)}
    samples = [tuple(s.hyperparameters.values()) for s in slot_inits]
    assert len(set(samples)) == 4


def test_worst_slots_are_replaced_and_best_continue() -> None:
    slot_inits = next_inits([0.1, 0.8, 0.5, 0.3, 0.7, 0.2, 0.6, 0.4], exploit_fraction=0.5, reinit_fraction=0.125)
    kinds = {s.slot: s.kind for s in slot_inits}
    assert Counter(kinds.values()) == {"reinit": 1, "exploit": 4, "continue": 3}
    assert kinds[0] == "reinit"  # the worst
    assert {slot for slot, kind in kinds.items() if kind == "continue"} == {1, 4, 6}  # the best three
    for s in slot_inits:
        if s.kind == "continue":
            assert s.parent == f"g00s{s.slot:02d}"
            assert s.hyperparameters == score().hyperparameters
        if s.kind == "exploit":
            assert s.parent in {"g00s01", "g00s04", "g00s06", "g00s02"}  # upper half of the leaderboard
        if s.kind == "reinit":
            assert s.parent is None


def test_parents_come_from_the_leaderboard_also_if_older() -> None:
    board = Leaderboard(4).insert(slot_scores([9.0, 8.0, 7.0, 6.0]))
    slot_inits = next_inits([0.1, 0.2, 0.3, 0.4], generation=5, board=board, exploit_fraction=1.0, reinit_fraction=0.0)
    assert {s.parent for s in slot_inits} <= {"g00s00", "g00s01"}


@pytest.mark.parametrize(("pods", "reinit", "exploit", "expected"), [
    (1, 0.125, 0.5, {"continue": 1}),
    (10, 0.3, 0.7, {"reinit": 3, "exploit": 7}),
    (100, 0.29, 0.57, {"reinit": 29, "exploit": 57, "continue": 14}),  # 0.29 * 100 is 28.999… in floating point
    (3, 0.0, 0.0, {"continue": 3}),
    (3, 1.0, 0.0, {"reinit": 3}),
])  # fmt: skip
def test_fractions_become_whole_slots(pods: int, reinit: float, exploit: float, expected: dict[str, int]) -> None:
    slot_inits = next_inits([float(i) for i in range(pods)], reinit_fraction=reinit, exploit_fraction=exploit)
    assert Counter(s.kind for s in slot_inits) == expected


def test_slot_without_a_score_is_always_replaced() -> None:
    slot_inits = next_inits([math.nan, 0.5, math.nan, 0.1], exploit_fraction=0.0, reinit_fraction=0.0)
    assert [s.kind for s in slot_inits] == ["exploit", "continue", "exploit", "continue"]
    assert {slot_inits[0].parent, slot_inits[2].parent} == {"g00s01"}


def test_without_any_score_all_slots_are_reinitialised() -> None:
    assert [s.kind for s in next_inits([math.nan, math.nan], exploit_fraction=0.5, reinit_fraction=0.0)] == [
        "reinit",
        "reinit",
    ]


@given(
    st.lists(st.one_of(st.floats(-3, 3), st.just(math.nan)), min_size=1, max_size=9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**31),
    st.integers(1, 50),
)
def test_every_slot_is_initialised_once_and_reproducibly(
    values: list[float], exploit: float, reinit: float, seed: int, generation: int
) -> None:
    slot_inits = next_inits(values, seed=seed, generation=generation, exploit_fraction=exploit, reinit_fraction=reinit)
    assert [s.slot for s in slot_inits] == list(range(len(values)))
    assert slot_inits == next_inits(
        values, seed=seed, generation=generation, exploit_fraction=exploit, reinit_fraction=reinit
    )
    for s in slot_inits:
        if not math.isfinite(values[s.slot]):
            assert s.kind != "continue"
        assert (s.parent is None) == (s.kind == "reinit")
        assert set(s.hyperparameters) == set(searched_names(AGENT))


def test_samples_depend_on_seed_slot_and_generation_only() -> None:
    def samples_of(pods: int, seed: int, generation: int) -> list[tuple[float, ...]]:
        slot_inits = next_inits(
            [1.0] * pods, seed=seed, generation=generation, reinit_fraction=1.0, exploit_fraction=0.0
        )
        return [tuple(s.hyperparameters.values()) for s in slot_inits]

    three_pods, six_pods = samples_of(3, 5, 2), samples_of(6, 5, 2)
    assert six_pods[:3] == three_pods  # more pods do not change the samples of the others
    assert len({*six_pods, *samples_of(3, 6, 2), *samples_of(3, 5, 3)}) == 12


def test_without_search_all_agents_keep_the_configured_hyperparameters() -> None:
    first = initial_slots(AGENT, range(4), seed=0, search="off")
    following = next_inits([0.1, 0.2, 0.3, 0.4], search="off", exploit_fraction=0.5, reinit_fraction=0.5)
    assert Counter(s.kind for s in following) == {"reinit": 2, "exploit": 2}
    assert all(s.hyperparameters == {} for s in (*first, *following))  # those of the config
