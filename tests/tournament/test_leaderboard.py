"""The leaderboard: order, ties, what never enters, lineage."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.tournament.leaderboard import Leaderboard, ancestry
from finrl_pod.types import Score
from tests.tournament.scores import rows, score


def ids(board: Leaderboard) -> list[str]:
    return [entry.id for entry in board.scores]


def test_the_best_stand_first_and_the_worst_fall_off() -> None:
    board = Leaderboard(2).insert([score("a", 0.1), score("b", 0.3)]).insert([score("c", 0.2)])
    assert ids(board) == ["b", "c"]
    assert board.best is not None
    assert board.best.score == 0.3


def test_ties_go_to_fewer_samples_then_to_the_smaller_id() -> None:
    entries = [score("b", samples=100), score("a", samples=200), score("c", samples=100)]
    assert ids(Leaderboard(3).insert(entries)) == ["b", "c", "a"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_scores_are_never_added(value: float) -> None:
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


@given(rows(), st.integers(1, 6))
def test_a_board_is_the_sorted_start_of_all_that_was_ever_inserted(entries: list[Score], size: int) -> None:
    half = len(entries) // 2
    board = Leaderboard(size).insert(entries[:half]).insert(entries[half:])
    finite = [entry for entry in entries if math.isfinite(entry.score)]
    # An independent statement of the order: nobody off the board beats anybody on it.
    assert len(board.scores) == min(size, len(finite))
    for first, second in zip(board.scores, board.scores[1:], strict=False):
        assert not _beats(second, first)
    for out in finite:
        if out.id not in ids(board):
            assert all(_beats(entry, out) for entry in board.scores)


@given(rows(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_order_of_inserting_does_not_matter(entries: list[Score], size: int, shuffle: random.Random) -> None:
    mixed = list(entries)
    shuffle.shuffle(mixed)
    one_by_one = Leaderboard(size)
    for entry in mixed:
        one_by_one = one_by_one.insert([entry])
    assert one_by_one == Leaderboard(size).insert(entries)


@given(rows(), st.integers(1, 6))
def test_a_board_comes_back_from_json_as_it_was(entries: list[Score], size: int) -> None:
    board = Leaderboard(size).insert(entries)
    assert Leaderboard.from_plain(size, json.loads(json.dumps(board.plain(), allow_nan=False))) == board


def test_ancestry_names_the_parent_first() -> None:
    parents = {"c": "b", "b": "a", "a": None, "x": "gone"}
    assert ancestry("c", parents) == ["b", "a"]
    assert ancestry("a", parents) == []
    assert ancestry("x", parents) == ["gone"]
    assert ancestry("unknown", parents) == []


def _beats(a: Score, b: Score) -> bool:
    if a.score != b.score:
        return a.score > b.score
    if a.samples != b.samples:
        return a.samples < b.samples
    return a.id < b.id
