"""Leaderboard scores for tests."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from finrl_pod.types import Score


def score(id: str = "g00s00", value: float = 1.0, **changes: Any) -> Score:
    values = {
        "id": id,
        "parent": None,
        "generation": 0,
        "slot": 0,
        "samples": 100,
        "score": value,
        "hyperparameters": {
            "learning_rate": 0.01,
            "gamma": 0.95,
            "gae_lambda": 0.9,
            "clip_range": 0.2,
            "entropy_coefficient": 0.0,
            "value_coefficient": 0.5,
        },
    }
    return Score(**{**values, **changes})


def score_lists(max_size: int = 12) -> st.SearchStrategy[list[Score]]:
    """Lists of scores with unique ids; equal scores, equal sample counts, NaN and infinity are frequent."""
    values = st.one_of(st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf]), st.floats(-5, 5))
    pairs = st.lists(st.tuples(values, st.integers(0, 3)), max_size=max_size)
    return pairs.map(
        lambda drawn: [
            score(f"g{i // 4:02d}s{i % 4:02d}", value, generation=i // 4, slot=i % 4, samples=100 * count)
            for i, (value, count) in enumerate(drawn)
        ]
    )
