"""slow_walk.py:SlowWalk keeps its contract."""

from pathlib import Path

from finrl_pod_app.services.extension_checks import check_extension


def test_slow_walk_keeps_its_contract() -> None:
    target = f"{Path(__file__).with_name('slow_walk.py')}:SlowWalk"
    assert check_extension(target, "environment") == []
