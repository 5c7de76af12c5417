"""The leaderboard: order, ties, non-finite scores and ancestry."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.tournament.leaderboard import Leaderboard, ancestry, root_limit, score_from_dict
from finrl_pod.types import Score
from tests.tournament.sample_scores import score, score_lists


def ids(board: Leaderboard) -> list[str]:
    return [entry.id for entry in board.scores]


def test_best_scores_come_first_and_the_worst_are_removed() -> None:
    board = Leaderboard(2).insert([score("a", 0.1), score("b", 0.3)]).insert([score("c", 0.2)])
    assert ids(board) == ["b", "c"]
    assert board.best is not None
    assert board.best.score == 0.3


def test_ties_are_broken_by_fewer_samples_then_by_id() -> None:
    entries = [score("b", samples=100), score("a", samples=200), score("c", samples=100)]
    assert ids(Leaderboard(3).insert(entries)) == ["b", "c", "a"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_scores_are_never_added(value: float) -> None:
    board = Leaderboard(3).insert([score("a", value)])
    assert board.scores == ()
    assert board.best is None


def test_insert_returns_a_new_leaderboard() -> None:
    old = Leaderboard(3).insert([score("a")])
    new = old.insert([score("b", 2.0)])
    assert ids(old) == ["a"]
    assert ids(new) == ["b", "a"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        old.scores = ()  # type: ignore[misc]


@given(score_lists(), st.integers(1, 6))
def test_leaderboard_holds_the_best_of_all_inserted_scores(entries: list[Score], size: int) -> None:
    half = len(entries) // 2
    board = Leaderboard(size).insert(entries[:half]).insert(entries[half:])
    finite = [entry for entry in entries if math.isfinite(entry.score)]
    # Independent definition: no excluded score ranks above an included one.
    assert len(board.scores) == min(size, len(finite))
    for first, second in zip(board.scores, board.scores[1:], strict=False):
        assert not ranks_above(second, first)
    for excluded in finite:
        if excluded.id not in ids(board):
            assert all(ranks_above(entry, excluded) for entry in board.scores)


@given(score_lists(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_insertion_order_does_not_matter(entries: list[Score], size: int, shuffle: random.Random) -> None:
    shuffled = list(entries)
    shuffle.shuffle(shuffled)
    one_by_one = Leaderboard(size)
    for entry in shuffled:
        one_by_one = one_by_one.insert([entry])
    assert one_by_one == Leaderboard(size).insert(entries)


@given(score_lists(), st.integers(1, 6))
def test_json_round_trip(entries: list[Score], size: int) -> None:
    board = Leaderboard(size).insert(entries)
    rows = json.loads(json.dumps([dataclasses.asdict(entry) for entry in board.scores], allow_nan=False))
    assert tuple(map(score_from_dict, rows)) == board.scores


def test_entries_of_an_over_represented_root_are_displaced_first() -> None:
    family = [score(f"a{i}", 2.0 + i, root="a0") for i in range(4)]
    others = [score(f"b{i}", 0.1 * i) for i in range(3)]
    board = Leaderboard(4, max_root_share=0.5)
    assert ids(board.insert(family)) == ["a3", "a2", "a1", "a0"], "no other root needs the places"
    assert ids(board.insert([*family, *others])) == ["a3", "a2", "b2", "b1"]
    assert ids(board.insert([*family, others[0]])) == ["a3", "a2", "a1", "b0"]
    assert ids(Leaderboard(4).insert([*family, *others])) == ["a3", "a2", "a1", "a0"], "without a limit"


@given(score_lists(16), st.integers(1, 6), st.floats(0.05, 1), st.randoms(use_true_random=False))
def test_the_limit_on_a_root_holds_whatever_the_order(
    entries: list[Score], size: int, share: float, shuffle: random.Random
) -> None:
    rooted = [replace(entry, root=f"r{i % 3}") for i, entry in enumerate(entries)]
    at_once = Leaderboard(size, max_root_share=share).insert(rooted)
    shuffle.shuffle(rooted)
    board = Leaderboard(size, max_root_share=share)
    for entry in rooted:
        board = board.insert([entry])
    assert board == at_once
    limit = max(1, math.floor(share * size + 1e-9))
    finite = [entry for entry in rooted if math.isfinite(entry.score)]
    assert len(board.scores) == min(size, len(finite))
    for root in ("r0", "r1", "r2"):
        if sum(entry.root == root for entry in board.scores) > limit:  # only where the others have no more to offer
            left_out = [entry for entry in finite if entry.id not in ids(board) and entry.root != root]
            assert all(sum(kept.root == entry.root for kept in board.scores) >= limit for entry in left_out)


def test_ancestry_starts_with_the_parent() -> None:
    parents = {"c": "b", "b": "a", "a": None, "x": "removed"}
    assert ancestry("c", parents) == ["b", "a"]
    assert ancestry("a", parents) == []
    assert ancestry("x", parents) == ["removed"]
    assert ancestry("unknown", parents) == []


def ranks_above(a: Score, b: Score) -> bool:
    if a.score != b.score:
        return a.score > b.score
    if a.samples != b.samples:
        return a.samples < b.samples
    return a.id < b.id


@pytest.mark.parametrize(("size", "share", "expected"), [(100, 0.29, 29), (4, 0.5, 2), (3, 0.1, 1)])
def test_root_limit_is_at_least_one_and_ignores_rounding(size: int, share: float, expected: int) -> None:
    assert root_limit(size, share) == expected
