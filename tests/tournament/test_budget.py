"""The wall-clock budget of a run."""

from __future__ import annotations

import math

from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.progress import Budget


def test_seconds() -> None:
    now = 100.0
    budget = Budget(TournamentConfig(seconds=60.0), lambda: now, seconds_before=10.0)
    assert budget.share(2) == 25.0
    now = 150.0
    assert budget.is_spent
    assert budget.share(1) == 0.0
    unlimited = Budget(TournamentConfig(), lambda: now)
    assert math.isinf(unlimited.share(3))
    assert not unlimited.is_spent
