"""The built-in market us74."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from finrl_pod.data import built_in_panels as us74
from finrl_pod.data.built_in_panels import load_us74
from finrl_pod.data.splits import make_splits
from finrl_pod.errors import SetupError
from finrl_pod.settings.run import BUILT_IN_SPLITS


@pytest.mark.slow
def test_the_panel_matches_its_description() -> None:
    panel = load_us74()
    assert panel.close.shape == (5970, 74)
    assert (str(panel.times[0])[:10], str(panel.times[-1])[:10]) == ("2000-01-04", "2023-09-26")
    assert (panel.symbols[0], panel.symbols[-1]) == ("T0", "T100")
    assert panel.columns == ("close", "spread")
    assert panel.tradable.all()
    assert panel.benchmark is None
    spread = panel.spread
    assert spread is not None
    years = panel.times.astype("datetime64[Y]").astype(int) + 1970
    medians = [1e4 * np.median(spread[years == year]) for year in (2000, 2011, 2023)]
    assert medians == pytest.approx([18.3, 2.7, 1.3], abs=0.1)


def test_flaws_are_computed_and_the_licence_is_included() -> None:
    text = " ".join(load_us74().flaws)
    for phrase in (
        "Survivorship",
        "Sharpe ratio of 0.72",
        "anonymised",
        "Closes only",
        "has 11 one-day moves above 40%",
    ):
        assert phrase in text
    assert "MIT License" in (us74.US74_FOLDER / "LICENSE").read_text()


def test_default_splits_fit_the_dates() -> None:
    splits = make_splits(load_us74().times, BUILT_IN_SPLITS["us74"])
    assert splits.dates()["train"][0] == "2000-01-04"
    assert splits.dates()["test"] == ["2019-10-01", "2023-09-26"]


@pytest.mark.parametrize("name", ["close", "spread"])
def test_a_damaged_file_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shutil.copytree(us74.US74_FOLDER, tmp_path / "us74")
    monkeypatch.setattr(us74, "US74_FOLDER", tmp_path / "us74")
    damaged = tmp_path / "us74" / f"{name}.parquet"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(SetupError, match=rf"{name}\.parquet is missing or damaged: install finrl-pod again"):
        load_us74()
