"""Made-up rows of a leaderboard."""

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
        "hyperparameters": {"learning_rate": 0.01, "gamma": 0.95, "gae_lambda": 0.9, "clip_range": 0.2},
    }
    return Score(**{**values, **changes})


def rows(most: int = 12) -> st.SearchStrategy[list[Score]]:
    """Lists of scores with ids of their own; equal scores, equal ages and NaN come up often."""
    number = st.one_of(st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf]), st.floats(-5, 5))
    facts = st.lists(st.tuples(number, st.integers(0, 3)), max_size=most)
    return facts.map(
        lambda pairs: [
            score(f"g{i // 4:02d}s{i % 4:02d}", value, generation=i // 4, slot=i % 4, samples=100 * age)
            for i, (value, age) in enumerate(pairs)
        ]
    )
