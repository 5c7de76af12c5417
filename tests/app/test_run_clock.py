"""Seconds of the parts of a run."""

from __future__ import annotations

from finrl_pod_app.training.run_clock import RunClock

from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.run_state import initial_state
from finrl_pod.tournament.tournament import Outcome


def test_parts_add_up_to_the_total_with_earlier_training() -> None:
    times = iter([100.0, 103.0, 110.0, 112.0, 117.0, 118.0, 118.5])
    clock = RunClock(lambda: next(times))
    for part in ("training", "backtests", "audit", "backtests", "report"):
        clock.enter(part)  # type: ignore[arg-type]
    board = initial_state(TournamentConfig(), ()).leaderboard
    # 20 seconds before the run was resumed; 6 of all seconds of training were scores.
    timing = clock.timing(Outcome(board, {}, 420, 21.0, 6.0, 20.0))
    assert timing.preparation_seconds == 3.0
    assert timing.training_seconds == 7.0 + 20.0 - 6.0
    assert timing.scoring_seconds == 6.0
    assert timing.backtests_seconds == 2.0 + 1.0
    assert timing.audit_seconds == 5.0
    assert timing.report_seconds == 0.5
    assert timing.total_seconds == 38.5
    assert timing.samples_per_second == 420 / 21.0


def test_walk_forward_adds_up_the_tournaments_of_its_folds() -> None:
    times = iter([0.0, 1.0, 11.0, 12.0, 22.0, 23.0, 23.0])
    clock = RunClock(lambda: next(times))
    for part in ("training", "preparation", "training", "audit", "report"):
        clock.enter(part)  # type: ignore[arg-type]
    board = initial_state(TournamentConfig(), ()).leaderboard
    timing = clock.timing(Outcome(board, {}, 100, 8.0, 1.0), Outcome(board, {}, 300, 8.0, 2.0, 4.0))
    assert (timing.samples, timing.samples_per_second) == (400, 25.0)
    assert timing.preparation_seconds == 2.0
    assert timing.training_seconds == 20.0 + 4.0 - 3.0
    assert (timing.scoring_seconds, timing.audit_seconds) == (3.0, 1.0)
    assert timing.total_seconds == 27.0
