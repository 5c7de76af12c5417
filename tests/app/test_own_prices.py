"""`finrl-pod demo prices.csv`: bars, names and lengths of the prices, the answer, and the command for the test."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.report.records import make_report
from finrl_pod_app.training.own_prices import demo_config, intraday_bar, store_file, with_chosen, write_demo

from finrl_pod.data.store import Store
from finrl_pod.errors import DataError
from finrl_pod.settings.run import RunConfig, load


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


def write_prices(name: str, times: pd.DatetimeIndex, symbols: int = 2, seed: int = 0) -> Path:
    """A wide CSV file of random walks."""
    steps = np.random.default_rng(seed).normal(3e-4, 0.01, (len(times), symbols))
    frame = pd.DataFrame(50 * np.exp(steps.cumsum(0)), times, [f"S{n}" for n in range(symbols)])
    frame.round(4).to_csv(name, index_label="date")
    return Path(name)


def days(count: int) -> pd.DatetimeIndex:
    return pd.bdate_range("2015-01-02", periods=count)


@pytest.mark.slow
def test_panels_are_named_by_their_file_and_never_replace_others() -> None:
    first = store_file(write_prices("my prices.csv", days(40)))
    assert (first.name, store_file(Path("my prices.csv")).name) == ("my-prices", "my-prices")
    other = store_file(write_prices("my prices.csv", days(40), seed=1))
    assert other.name == f"my-prices-{other.sha256[:8]}"
    assert Store().show("my-prices").sha256 == first.sha256
    assert store_file(write_prices("sample.csv", days(40))).name.startswith("sample-")


@pytest.mark.slow
def test_bars_of_minutes_and_gaps_are_recognised() -> None:
    sessions = [pd.date_range(day + pd.Timedelta("14h"), periods=30, freq="min") for day in days(40)]
    manifest = store_file(write_prices("minutes.csv", sessions[0].append(sessions[1:])))
    assert manifest.bar == "1m"
    config = demo_config(manifest, quick=True)
    assert (config.mandate.decide_every, config.tournament.samples_per_generation) == (390, 5_000)
    frame = pd.read_csv(write_prices("gaps.csv", days(40)), index_col=0)
    frame.iloc[10, 0] = np.nan
    frame.to_csv("gaps.csv")
    assert store_file(Path("gaps.csv")).bars == 40


@pytest.mark.slow
def test_demo_reads_a_file_with_the_options_of_an_import(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{day:%d.%m.%Y};SAP;10,{n};fest" for n, day in enumerate(days(40), 10)]
    Path("kurse.csv").write_text("\n".join(["Tag;Code;Schluss;Notiz", *rows]))
    arguments = ["--columns", "Tag=time,Code=symbol", "--date-format", "%d.%m.%Y", "--ignore-unknown", "--unadjusted"]
    assert run(["demo", "kurse.csv", *arguments]) == 2
    assert "kurse has only 40 bars" in capsys.readouterr().err  # read, and too short for a verdict
    assert (Store().show("kurse").symbols, Store().show("kurse").adjusted) == (("SAP",), False)


@pytest.mark.parametrize(
    ("freq", "bar"), [("1min", "1m"), ("5min", "1m"), ("15min", "15m"), ("30min", "15m"), ("h", "1h"), ("D", None)]
)
def test_length_of_bars_follows_from_their_times(freq: str, bar: str | None) -> None:
    times = pd.date_range("2024-03-04 14:30", periods=50, freq=freq).to_numpy()
    assert intraday_bar(times) == bar


def test_short_panels_get_short_windows_or_are_refused() -> None:
    Store().save(_panel(300))
    config = demo_config(Store().show("main"), quick=False)
    assert config.environment.window < 252
    Store().save(_panel(60))
    with pytest.raises(DataError, match=r"main has only 60 bars, .* at least 33 bars of validation"):
        demo_config(Store().show("main"), quick=False)


def _panel(bars: int) -> Any:
    from tests.data.panels import panel

    steps = np.random.default_rng(0).normal(3e-4, 0.01, (bars, 3))
    return panel(50 * np.exp(steps.cumsum(0)), name="main", source="main")


def test_config_keeps_the_answer_and_the_command_names_it() -> None:
    answer = 'all "growth" stocks\nof 2012, Börse'
    config = with_chosen(RunConfig(), answer)
    demo = write_demo(make_report({"data": {**_data(), "chosen": config.data.chosen}}), config, Path("my run"))
    assert load(demo.config) == config
    assert config.data.chosen == 'all "growth" stocks of 2012, Börse'
    assert shlex.split(demo.test_command) == [
        "finrl-pod", "tournament", "my run/demo.toml", "--resume", "--out", "my run",
    ]  # fmt: skip
    document = demo.to_dict()
    assert (document["symbols"], document["chosen"], document["detectable_difference"]) == (2, config.data.chosen, None)
    assert with_chosen(config, " ").data.chosen == "not stated"


def _data() -> dict[str, Any]:
    facts = {"name": "main", "sha256": "", "start": "", "end": "", "bars": 9, "source": "", "adjusted": True}
    return {**facts, "symbols": ("A", "B"), "columns": (), "flaws": ()}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no.csv"], "there is no file, folder or stored panel no.csv"),
        (["no_panel"], "there is no file, folder or stored panel no_panel"),
        (["prices.csv", "--data", "us74"], "--data names other prices than prices.csv"),
        (["--chosen", "by hand"], "--chosen describes the symbols of your prices"),
        (["--unadjusted"], "--adjusted is for a file of prices"),
        (["sample", "--date-format", "%d.%m.%Y"], "--date-format is for a file of prices"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_demo_on_prices_stops_before_the_test(capsys: pytest.CaptureFixture[str]) -> None:
    write_prices("prices.csv", days(700), symbols=3)
    assert run(["demo", "prices.csv", "--quick", "--out", "mine", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["symbols"], document["chosen"], document["looks_so_far"]) == (3, "not stated", 0)
    assert document["detectable_difference"] > 0
    assert len(document["opening"]) == 3
    assert not (Path("mine") / "verdict.json").exists()
    assert run([*shlex.split(document["test_command"])[1:], "--json"]) in (0, 1)
    tested = json.loads(capsys.readouterr().out)
    assert (tested["looks_so_far"], tested["data"]["chosen"]) == (1, "not stated")
