"""Ranking of pods at equal age, protection of new ones, and novelty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import RunError
from finrl_pod.settings.run import PPOConfig, TournamentConfig
from finrl_pod.tournament import ranking
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.next_generation import next_slots
from finrl_pod.tournament.ranking import BASE, Comparison, PastScore, past_from_dict
from finrl_pod.types import Floats, Score
from tests.tournament.sample_scores import score
from tests.tournament.small_tournament import small_config, tournament

EACH = 100  # samples of a generation


def comparison(
    history: Mapping[str, PastScore] | None = None, returns: Mapping[str, Floats] | None = None, **settings: Any
) -> Comparison:
    config = TournamentConfig(samples_per_generation=EACH, **settings)
    return Comparison(config, history or {}, returns or {})


def pod(slot: int, generation: int, value: float, age: int, root: str = "") -> Score:
    name = f"g{generation:02d}s{slot:02d}"
    return score(name, value, slot=slot, generation=generation, samples=age * EACH, root=root or name)


FIRST = {f"g00s{slot:02d}": PastScore(slot, 0, EACH, 0.1 * slot) for slot in range(4)}


def test_a_young_agent_is_compared_with_the_others_when_they_were_as_old() -> None:
    """It scores lower than the old ones, but higher than three of the four that were once as old."""
    old = [pod(slot, 3, 1.0 + 0.1 * slot, 4, f"g00s{slot:02d}") for slot in range(3)]
    young = pod(3, 3, 0.25, 1)
    ranked = comparison(FIRST).ranking([*old, young])
    # Of its age 3 of 5 score less, and it ties with itself: 0.7. The old ones have 1/6, 3/6 and 5/6.
    assert [entry.slot for entry in ranked] == [2, 3, 1, 0]


def test_at_one_age_the_score_decides() -> None:
    pods = [pod(slot, 0, value, 1) for slot, value in enumerate((0.3, math.nan, 0.5, 0.3))]
    assert [entry.slot for entry in comparison(FIRST).ranking(pods)] == [2, 0, 3, 1]


def test_diverged_agents_of_the_same_age_count_as_beaten() -> None:
    history = {**FIRST, "g00s00": PastScore(0, 0, EACH, math.nan)}
    one, other = pod(0, 2, 0.15, 1), pod(1, 2, 9.0, 3)
    assert [entry.slot for entry in comparison(history).ranking([one, other])] == [1, 0]


@pytest.mark.parametrize(("age", "expected"), [(1, True), (2, False)])
def test_a_new_agent_is_protected_for_its_first_generations(age: int, expected: bool) -> None:
    late = {"g02s03": PastScore(3, 2, EACH, -9.0)}
    newborn = pod(3, 1 + age, -9.0, age, "g02s03")
    assert comparison({**FIRST, **late}).is_protected(newborn) is expected
    assert not comparison({**FIRST, **late}).is_protected(pod(3, 2, math.nan, 1, "g02s03"))
    assert not comparison(FIRST).is_protected(pod(0, 0, -9.0, 1, "g00s00")), "all of the first generation are as old"


def test_protected_pods_continue_and_the_others_are_refilled() -> None:
    config = TournamentConfig(pods=5, samples_per_generation=EACH, exploit_fraction=0.5, reinit_fraction=0.2)
    history = {**FIRST, "g02s04": PastScore(4, 2, EACH, -9.0)}
    current = [pod(slot, 2, float(slot), 3, f"g00s{slot:02d}") for slot in range(4)] + [pod(4, 2, -9.0, 1, "g02s04")]
    inits = next_slots(PPOConfig(), config, 0, 3, Leaderboard(16).insert(current), current, history)
    assert [s.kind for s in inits] == ["reinit", "exploit", "exploit", "continue", "continue"]
    assert inits[4].parent == "g02s04"


def test_novelty_lowers_the_score_of_an_agent_that_moves_like_a_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "NOVELTY", 0.5)
    rng = np.random.default_rng(0)
    best, other = rng.normal(size=300), rng.normal(size=300)
    returns = {"a": best, "b": best + 0.1 * rng.normal(size=300), "c": other, BASE: np.zeros(300)}
    scores = [score("b", 0.9), score("c", 0.8), score("a", 1.0)]
    compare = comparison(returns=returns)
    expected_b = 0.9 - 0.5 * np.corrcoef(best, returns["b"])[0, 1]
    expected_c = 0.8 - 0.5 * np.mean([np.corrcoef(other, returns[name])[0, 1] for name in ("a", "b")])
    assert compare.adjusted(scores) == pytest.approx([expected_b, expected_c, 1.0])
    assert [entry.id for entry in compare.ranking(scores)] == ["a", "c", "b"]
    assert comparison().adjusted(scores) == [0.9, 0.8, 1.0], "without returns"


def test_novelty_decides_about_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    best = rng.normal(size=200)
    current = [score(f"g00s{i:02d}", value, slot=i) for i, value in enumerate((1.0, 0.9, 0.8, 0.1))]
    returns = {"g00s00": best, "g00s01": best, "g00s02": rng.normal(size=200), "g00s03": best, BASE: np.zeros(200)}
    for novelty, parents in ((0.0, {"g00s00", "g00s01"}), (0.5, {"g00s00", "g00s02"})):
        monkeypatch.setattr(ranking, "NOVELTY", novelty)
        config = TournamentConfig(pods=4, exploit_fraction=1.0, reinit_fraction=0.0)
        found = {
            init.parent
            for seed in range(8)
            for init in next_slots(PPOConfig(), config, seed, 1, Leaderboard(4).insert(current), current, {}, returns)
        }
        assert found == parents


@pytest.mark.slow
def test_a_run_keeps_the_scores_of_all_agents(tmp_path: Path) -> None:
    run = tournament(small_config(pods=3), tmp_path / "run")
    outcome = run.run()
    saved = run.run_directory.state()
    assert saved is not None
    history = saved.history
    assert set(history) == set(outcome.parents)
    for entry in outcome.leaderboard.scores:
        assert history[entry.id].score == entry.score
        assert history[entry.id].samples == entry.samples
    with pytest.raises(RunError, match=r"state\.json has an invalid row in its history"):
        past_from_dict({"slot": 1})
