"""Bases from a user's file, and bases that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.cli import main
from finrl_pod_strategies.base_portfolios import base_at, base_strategy, base_table

from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.backtest import window_at
from finrl_pod.types import Panel

FILE = """
import numpy as np

class Inverse:
    '''Inverse to the price; counts its calls, which must not change its weights.'''
    lookback = 3
    calls = 0

    def target_weights(self, window, positions):
        self.calls += 1
        weights = np.where(window.tradable[-1], 1 / window.close[-1], 0.0)
        return self.calls * weights / weights.sum()

class Whole(Inverse):
    lookback = None

class Levered(Inverse):
    def target_weights(self, window, positions):
        return 2 * super().target_weights(window, positions)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def prices(bars: int = 120) -> Panel:
    rng = np.random.default_rng(0)
    close = 20 * np.exp(rng.normal(0, 0.02, (bars, 3)).cumsum(0))
    times = np.arange("2020-01-01", bars, dtype="datetime64[D]").astype("datetime64[ns]")
    return Panel(times, ("A", "B", "C"), close, np.isfinite(close))


def test_base_of_a_file_stands_for_each_month(file: Path) -> None:
    panel, name = prices(), f"{file}:Inverse"
    table = base_table(name, panel)
    february = int(np.flatnonzero(panel.times == np.datetime64("2020-02-01"))[0])
    assert np.isnan(table[:february]).all()
    inverse = 1 / panel.close[february]
    assert table[february] == pytest.approx(inverse / inverse.sum())
    assert (table[february : february + 29] == table[february]).all()
    for t in (february + 3, 100):
        assert base_at(name, window_at(panel, t, 40)) == pytest.approx(table[t], rel=1e-12)


def test_unsuitable_bases_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="needs an attribute lookback"):
        base_strategy(f"{file}:Whole")
    with pytest.raises(ConfigError, match=r"mandate.base: .* has no Other"):
        base_strategy(f"{file}:Other")
    with pytest.raises(ConfigError, match=r"weights of Levered at 2020-02-01 may add up to 1 at most"):
        base_table(f"{file}:Levered", prices())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("minimum_varience", "did you mean minimum_variance?"),
        ("index", "cannot be a base"),
        ("nowhere.py:Base", "there is no file nowhere.py"),
    ],
)
def test_bad_base_ends_a_run_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str, message: str
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'[mandate]\nbase = "{base}"\n')
    assert main.run(["tournament", str(config), "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("finrl-pod: mandate.base")
    assert message in lines[-1]
    assert len(lines) <= 2  # the other one says what is read
