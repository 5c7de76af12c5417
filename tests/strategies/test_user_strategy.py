"""Strategies from users' files: loading, invalid files, and access to copies of past data only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from finrl_pod_strategies.baselines import RandomWeights
from finrl_pod_strategies.user_strategy import load_user_strategy

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.user_files import is_file_reference
from tests.evaluate.conftest import build

GOOD = """
import numpy as np
from dataclasses import dataclass

@dataclass
class Even:
    seed: int = 0
    def target_weights(self, window, positions):
        return np.full(len(window.symbols), 1 / len(window.symbols))

class Seedless(Even):
    name = "mine"
    lookback = 3
    def __init__(self):
        pass

class Nothing:
    pass

class Demanding:
    def __init__(self, money):
        pass
    target_weights = None
    def target_weights(self, window, positions):
        pass

number = 3
"""
RULES = ExecutionRules(0.001)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def test_a_class_is_loaded_as_a_strategy(file: Path) -> None:
    strategy = load_user_strategy(f"{file}:Even", seed=5)
    assert (strategy.name, strategy.feature_names, strategy.inner.seed) == ("Even", (), 5)  # type: ignore[attr-defined]
    other = load_user_strategy(f"{file}:Seedless")
    assert (other.name, other.lookback) == ("mine", 3)  # type: ignore[attr-defined]
    assert is_file_reference("a/b.py:C")
    assert not is_file_reference("equal_weight")
    assert not is_file_reference("b.py:")


@pytest.mark.parametrize(
    ("name", "seed", "message"),
    [
        ("Absent", None, "has no Absent"),
        ("number", None, "must be a class, got int"),
        ("Nothing", None, "needs a method target_weights"),
        ("Demanding", None, "Demanding could not be created: TypeError"),
        ("Seedless", 1, "takes no seed"),
    ],
)
def test_invalid_classes_are_refused(file: Path, name: str, seed: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_user_strategy(f"{file}:{name}", seed)


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_user_strategy(f"{tmp_path}/none.py:A")
    broken = tmp_path / "broken.py"
    broken.write_text("def (:")
    with pytest.raises(InputError, match=r"broken.py could not be imported: SyntaxError"):
        load_user_strategy(f"{broken}:A")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return np.full(3, 0.5)", "at 2020-01-06 may add up to 1 at most"),
        ("return np.full(2, 0.5)", r"Bad at 2020-01-06 must be one number for each of the 3 symbols, got shape \(2,\)"),
        ("return np.array([0.5, np.nan, 0.1])", "2020-01-06 must be finite, got nan for S1"),
        ("return 'much'", "Bad at 2020-01-06 must be an array of numbers or None, got str"),
        ("return 1 / 0", r"strategy Bad failed at 2020-01-06: ZeroDivisionError: division by zero, mine.py line 5"),
        ("return window.close[99]", "strategy Bad failed at 2020-01-06: IndexError"),
    ],
)
def test_invalid_decisions_are_reported_with_the_bar(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nclass Bad:\n    def target_weights(self, window, positions):\n"
        f"        if len(window.times) == 6:\n            {body}\n"
    )
    panel, market = build(50 + np.random.default_rng(0).normal(0, 1, (20, 3)).cumsum(0))
    with pytest.raises(InputError, match=message):
        backtest(load_user_strategy(f"{path}:Bad"), panel, MarketPeriod(market, 2, 19, RULES, 1e4))


def test_random_weights_depend_only_on_seed_and_date() -> None:
    panel, market = build(50 + np.random.default_rng(0).normal(0, 0.1, (90, 3)).cumsum(0))
    one, again, other = (backtest(RandomWeights(s), panel, MarketPeriod(market, 3, 89, RULES, 1e4)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.equity, again.equity)
    assert not np.allclose(one.equity, other.equity)
    late = backtest(RandomWeights(1), panel, MarketPeriod(market, 20, 89, RULES, 1e4))
    np.testing.assert_allclose(late.weights[-1], one.weights[-1], atol=1e-3)
    assert ((one.weights.sum(1) <= 1 + 1e-9) & (one.weights >= 0).all(1)).all()
