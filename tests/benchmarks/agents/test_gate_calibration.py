"""Calibration of the gate's test for an edge, and the records of null worlds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.agents import gate_calibration
from benchmarks.runner import main
from finrl_pod.evaluate.overfitting import null_z_scores


def test_selection_of_the_calibration_is_that_of_the_gate() -> None:
    """The z-scores of its ensembles without an edge have the distribution that the gate assumes."""
    from scipy import stats

    matrix = gate_calibration.correlation_matrix("families", 0.6, 9)
    assert (matrix[0, 4], matrix[0, 1], matrix[3, 3]) == pytest.approx((0.6, 0.15, 1.0))
    z_scores = np.random.default_rng(0).multivariate_normal(np.zeros(9), matrix, 4000)
    for how in ("best", "greedy"):
        shares = gate_calibration.select(z_scores, matrix, 4, how)
        own = (shares * z_scores).sum(1) / np.sqrt(((shares @ matrix) * shares).sum(1))
        null = null_z_scores(matrix, 4, how, seed=1)
        assert stats.ks_2samp(own, null).pvalue > 0.01


@pytest.mark.parametrize("name", list(gate_calibration.NOISES))
def test_noise_has_unit_variance(name: str) -> None:
    values = gate_calibration.NOISES[name](np.random.default_rng(1), (20_000, 3))
    assert values.shape == (20_000, 3)
    assert values.std() == pytest.approx(1.0, abs=0.1)
    assert abs(values.mean()) < 0.05


def test_kept_calibration_holds_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A few cells, made again: about 2.5% promoted without an edge, and more than a test of test alone with one."""
    for name, values in {"STRUCTURES": ("equal",), "CORRELATIONS": (0.6,), "TRIALS": (17,)}.items():
        monkeypatch.setattr(gate_calibration, name, values)
    monkeypatch.setattr(gate_calibration, "stream_cells", list)
    size, power = gate_calibration.gate_rows(
        gate_calibration.GateSettings(calibrate=True, calibration=tmp_path / "new.json")
    )
    assert 0.015 <= size.value <= 0.035
    assert power.low >= -0.05


def test_a_missing_or_damaged_calibration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none.json"
    assert main(["gate", "--calibration", str(file)]) == 2
    assert "is missing: add --calibrate" in capsys.readouterr().err
    file.write_text("{}")
    assert main(["gate", "--calibration", str(file)]) == 2
    assert "is not a calibration of the gate" in capsys.readouterr().err
