"""The `paper` commands, and the checks of a run before it may trade."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from finrl_pod_app.cli import main
from finrl_pod_app.evaluation.backtests import prepare
from finrl_pod_app.paper import demo
from finrl_pod_app.paper.backtest_difference import PriceSource, TrackedStrategy, TrackReport
from finrl_pod_app.paper.runner import _handle_signals
from finrl_pod_app.paper.sources import PromotedRun, load_promoted, log_deployments
from finrl_pod_app.paper.status_view import show_demo

from finrl_pod.errors import Interrupted, RunError
from finrl_pod.paper.journal.commands import CommandName, CommandResult, enqueue, pending_commands, record_result
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import AlertStatus, Slippage
from finrl_pod.paper.settings import BrokerSettings
from finrl_pod.promotion.trial_registry import Look, TrialRegistry
from finrl_pod.settings.run import parse
from tests.data.panels import random_panel
from tests.paper import factories
from tests.paper.trained_run import damage, trained_copy, update_report

pytestmark = pytest.mark.slow

CONFIG = """
name = "cli"
journal = "cli.sqlite"
strategy = "equal_weight"
symbols = ["AAPL", "JPM", "KO"]
[broker]
kind = "{kind}"
url = "{url}"
[schedule]
mode = "close"
[data]
window = 30
"""


class CommandOutput(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandOutput]:
    """Run the command line in this process."""

    def run(*arguments: str) -> CommandOutput:
        code = main.run(list(arguments))
        return CommandOutput(code, *capsys.readouterr())

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "paper.toml"
    file.write_text(CONFIG.format(kind="simulated", url=""))
    return file


def test_replay_status_orders_and_halt(call: Callable[..., CommandOutput], config: Path, tmp_path: Path) -> None:
    done = call("paper", "replay", "2019-01-02", "2019-01-31", str(config), "--journal", str(tmp_path / "cli.sqlite"),
                "--json")  # fmt: skip
    assert done.code == 0, done.err
    replayed = json.loads(done.out)
    assert replayed["same"]
    assert replayed["equity"] == replayed["backtest_equity"]
    status = json.loads(call("paper", "status", str(config), "--json").out)
    assert status["state"] == "active"
    assert set(status["positions"]) == {"AAPL", "JPM", "KO"}
    assert status["counts"]["orders"] == replayed["orders"]
    listed = json.loads(call("paper", "orders", str(config), "--json").out)["orders"]
    assert len(listed) == replayed["orders"]
    halted = call("paper", "halt", str(config), "--wait", "0", "--json")
    assert halted.code == 0
    assert json.loads(halted.out)["outcome"] is None
    assert json.loads(call("paper", "status", str(config), "--json").out)["state"] == "halted"
    # Commands not executed by the daemon are not successful.
    assert call("paper", "reconcile", str(config), "--wait", "0").code == 1
    assert call("paper", "flatten", str(config), "--wait", "0").code == 1


def test_concentrated_strategy_trades_under_the_default_limits(
    call: Callable[..., CommandOutput], config: Path
) -> None:
    """The documented symbols, and a strategy whose weights of 49% exceed the largest position of 40%."""
    text = config.read_text().replace("equal_weight", "momentum_12_1").replace("window = 30", "window = 600")
    config.write_text(text.replace('["AAPL", "JPM", "KO"]', '["AAPL", "JPM", "KO", "PG", "XOM"]'))
    done = call("paper", "replay", "2019-01-02", "2019-02-06", str(config), "--json")
    assert done.code == 0, done.err
    replayed = json.loads(done.out)
    assert replayed["same"], replayed["differences"]
    assert replayed["orders"] >= 2
    assert [text for text in replayed["alerts"] if "risk.max_position" in text] == replayed["alerts"]
    assert len(replayed["alerts"]) == 1


@pytest.mark.parametrize(
    "result", [CommandResult("active"), CommandResult("not resumed: account and journal differ", refused=True)]
)
def test_refused_command_exits_with_1(
    call: Callable[..., CommandOutput], config: Path, monkeypatch: pytest.MonkeyPatch, result: CommandResult
) -> None:
    store = Store.create_or_open(config.with_name("cli.sqlite"))

    def submit_and_answer(store: Store, name: CommandName, user: str) -> int:
        """Queue the command and record the daemon's result immediately."""
        number = enqueue(store, name, datetime(2024, 1, 2, tzinfo=UTC), user=user)
        record_result(store, pending_commands(store)[-1], result, datetime(2024, 1, 2, tzinfo=UTC))
        return number

    monkeypatch.setattr("finrl_pod.paper.journal.commands.submit_command", submit_and_answer)
    done = call("paper", "resume", str(config), "--json")
    assert done.code == (1 if result.refused else 0)
    assert json.loads(done.out)["refused"] == result.refused
    assert json.loads(done.out)["outcome"] == result.message
    store.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], "there is no journal"),
        (["run"], "does not keep its account between runs"),
        (["replay", "2019-01-05", "2019-01-06"], "a replay needs 2 bars"),
        (["replay", "never", "2019-01-06"], "START"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    call: Callable[..., CommandOutput], config: Path, arguments: list[str], message: str
) -> None:
    done = call("paper", *arguments, str(config))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("url", ["https://api.alpaca.markets", "https://paper-api.alpaca.markets.evil.org",
                                 "https://paper-api.alpaca.markets@evil.org", "http://10.0.0.1"])  # fmt: skip
def test_live_and_unknown_addresses_are_refused(
    call: Callable[..., CommandOutput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", "PKSECRET")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "verysecret")
    file = tmp_path / "paper.toml"
    file.write_text(CONFIG.format(kind="alpaca", url=url))
    done = call("paper", "run", str(file))
    assert done.code == 2
    assert "verysecret" not in done.err
    assert "PKSECRET" not in done.err


def test_missing_keys_are_named(
    call: Callable[..., CommandOutput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APCA_API_KEY_ID", raising=False)
    monkeypatch.delenv("APCA_API_SECRET_KEY", raising=False)
    file = tmp_path / "paper.toml"
    file.write_text(CONFIG.format(kind="alpaca", url=""))
    done = call("paper", "run", str(file))
    assert done.code == 2
    assert "APCA_API_KEY_ID" in done.err


# ---------------------------------------------------------------------- checks of a run

SYMBOLS = ("AAPL", "JPM")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_copy(tmp_path_factory)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "runs" / "one"
    shutil.copytree(trained, copy)
    return copy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[risk]\nmax_position = 0.1", "risk.max_position must be at least 0.3267"),
        ("[risk]\nmax_gross = 0.5\nmax_net = 0.5", "risk.max_gross must be at least 0.98"),
        ("[data]\nwindow = 5", "data.window must be at least 12 sessions"),
    ],
)
def test_config_that_contradicts_the_mandate_is_refused_before_anything_runs(
    call: Callable[..., CommandOutput], run: Path, tmp_path: Path, settings: str, message: str
) -> None:
    text = CONFIG.format(kind="simulated", url="").replace('strategy = "equal_weight"', f'run = "{run}"')
    file = tmp_path / "paper.toml"
    file.write_text(text.replace("[data]\nwindow = 30\n", "") + settings)
    done = call("paper", "replay", "2019-01-02", "2019-01-31", str(file), "--journal", str(tmp_path / "new.sqlite"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert not (tmp_path / "new.sqlite").exists()


def test_unpromoted_champion_does_not_trade(run: Path) -> None:
    update_report(run, verdict={"promoted": False, "reasons": []})
    with pytest.raises(RunError, match="was not promoted"):
        load_promoted(run, SYMBOLS)
    assert load_promoted(run, SYMBOLS, allow_unpromoted=True).strategy.name == "champion"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"promoted": True}, "contradicts its own rules"),
        ({"promoted": True, "rules": []}, "contradicts its own rules"),
        ({"rules": 3}, "damaged"),
        (None, "was not promoted"),
    ],
)
def test_damaged_missing_or_forged_verdict_does_not_trade(
    run: Path, change: dict[str, Any] | None, message: str
) -> None:
    update_report(run, verdict={"promoted": False, "reasons": []})
    verdict = run / "verdict.json"
    if change is None:
        verdict.unlink()
    else:
        verdict.write_text(json.dumps({**json.loads(verdict.read_text()), **change}))
    with pytest.raises(RunError, match=message):
        load_promoted(run, SYMBOLS)


def test_report_and_verdict_must_agree(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []})
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**report, "verdict": {"promoted": False}}))
    with pytest.raises(RunError, match=r"report and verdict of .* disagree"):
        load_promoted(run, SYMBOLS)


def test_promoted_run_brings_its_base_and_the_band_of_its_active_returns(run: Path) -> None:
    loaded = load_promoted(run, SYMBOLS, allow_unpromoted=True)
    assert loaded.base is not None
    assert loaded.base.mandate == loaded.strategy.mandate  # type: ignore[attr-defined]
    assert loaded.band is not None
    assert (loaded.band.level, len(loaded.band.lower)) == (0.05, 252)
    assert loaded.band.edge(252) < loaded.band.edge(1) < 0
    update_report(run, stop_rule=None)
    assert load_promoted(run, SYMBOLS, allow_unpromoted=True).band is None


def test_voting_ensemble_trades_by_the_rule_it_was_tested_with(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []})
    file = run / "config.json"
    saved = json.loads(file.read_text())
    assert load_promoted(run, SYMBOLS).strategy.rule == "mean"  # type: ignore[attr-defined]
    saved["config"]["tournament"]["ensemble"] = "vote"
    config = parse(saved["config"])
    file.write_text(json.dumps({**saved, "config_sha256": config.sha256}))
    update_report(run, config_sha256=config.sha256)
    traded, tested = load_promoted(run, SYMBOLS).strategy, prepare(run).strategy
    assert traded.rule == tested.rule == "vote"  # type: ignore[attr-defined]


def test_weights_changed_while_the_daemon_runs_are_detected(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []})
    source = PromotedRun(run, SYMBOLS)
    source.current()
    damage(next((run / "snapshots").glob("*.safetensors")))
    with pytest.raises(RunError, match="is damaged"):
        source.current()


def test_damaged_weights_do_not_trade(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []})
    load_promoted(run, SYMBOLS)
    damage(next((run / "snapshots").glob("*.safetensors")))
    with pytest.raises(RunError, match="is damaged"):
        load_promoted(run, SYMBOLS)


def test_report_of_another_config_or_other_agents_does_not_trade(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []}, champion={"members": ["g0009s00"]})
    with pytest.raises(RunError, match="tested the agents"):
        load_promoted(run, SYMBOLS)
    update_report(run, config_sha256="0" * 64)
    with pytest.raises(RunError, match="another config"):
        load_promoted(run, SYMBOLS)


def test_wrong_number_of_features_does_not_trade(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []})
    for file in (run / "snapshots").glob("*.json"):
        saved = json.loads(file.read_text())
        saved["spec"]["features"] = 3
        file.write_text(json.dumps(saved))
    with pytest.raises(RunError, match="takes 3 features"):
        load_promoted(run, SYMBOLS)


def test_newest_promoted_run_replaces_the_current_one(run: Path) -> None:
    update_report(run, verdict={"promoted": True, "reasons": []})
    source = PromotedRun(run.parent, SYMBOLS)
    first = source.current()
    assert source.current() is first
    newer = run.parent / "two"
    shutil.copytree(run, newer)
    update_report(newer, verdict={"promoted": False, "reasons": []})
    assert source.current() is first
    update_report(newer, verdict={"promoted": True, "reasons": ["again"]})
    os.utime(newer / "report.json", ns=(2**62, 2**62))
    second = source.current()
    assert second.sha256 != first.sha256
    assert "two" in second.detail
    walk = run.parent / "walk"  # the verdict of a walk-forward does not promote a run
    walk.mkdir()
    for name in ("report.json", "verdict.json"):
        shutil.copy(newer / name, walk / name)
    assert source.current() is second


def test_paper_demo_resumes_the_training_of_its_champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "champion").mkdir()
    (tmp_path / "champion" / "config.json").write_text("{}")
    calls = []

    def interrupted(config: Any, out: Path, *, device: str, resume: bool) -> None:
        calls.append((out, resume))
        raise Interrupted("by Ctrl-C")

    monkeypatch.setattr(demo, "run_tournament", interrupted)
    with pytest.raises(Interrupted):
        demo.run_demo(tmp_path, date(2019, 1, 2), 3, lambda _: None)
    assert calls == [(tmp_path / "champion", True)]


def test_paper_demo_shows_two_strategies_a_summary_and_the_causes_of_the_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def strategy(name: str, dividends: float) -> TrackedStrategy:
        return TrackedStrategy(name, 1.0, 1.0, {"dividends": dividends, "unexplained": 0.0}, {}, {})

    track = TrackReport(
        made="2019-06-04T00:00:00",
        strategy="champion, inverse_volatility",
        prices=PriceSource("sample", "sample", "0"),
        sessions=["2019-05-31", "2019-06-03"],
        equity=[100_000.0, 101_000.0],
        backtest=[100_000.0, 101_100.0],
        same=False,
        differences=["one"],
        attribution={"dividends": -100.0, "unexplained": 0.0},
        unexplained_limit=50.0,
        alarm=False,
        strategies={"champion": strategy("champion", -60.0), "low_risk": strategy("inverse_volatility", -40.0)},
    )
    report = demo.DemoReport(
        state="active",
        positions={"KO": Decimal(1)},
        cash=Decimal(1),
        counts={"decisions": 4, "orders": 5, "fills": 6},
        slippage=Slippage(1.5, 0.0, 6),
        alerts=[
            AlertStatus("2019-06-03", "warning", "expired", "buy AMD: 0 of 1 shares"),
            AlertStatus("2019-06-03", "info", "summary", "later"),
        ],
        capital=Decimal(100_000),
        first="2019-06-03",
        last="2019-06-04",
        sessions=2,
        days=["2019-06-03", "2019-06-04"],
        equity=Decimal(101_000),
        backtest_equity=Decimal(101_100),
        agrees=True,
        summary="2019-06-04: equity 101,500.00",
        track=track,
        folder="out",
    )
    show_demo(report)
    text = capsys.readouterr().out
    assert "Last alerts:\nbuy AMD: 0 of 1 shares\nLast end-of-day summary:\n2019-06-04: equity 101,500.00\n" in text
    assert "later" not in text
    for words in ("champion", "low_risk", "dividends", "-60.00", "-40.00", "-100.00", "unexplained", "Reconciled"):
        assert words in text
    assert "The daemon traded from 2019-06-03 to 2019-06-04: 4 decisions" in text


def test_folder_without_a_promoted_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no promoted run"):
        PromotedRun(tmp_path, SYMBOLS).current()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_the_daemon(number: signal.Signals) -> None:
    daemon = Mock()
    before = signal.signal(number, signal.SIG_DFL)  # independent of the test runner's handler
    try:
        with _handle_signals(daemon) as caught:
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert [call[0] for call in daemon.method_calls] == ["stop"]
    assert caught == [number]


def test_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _handle_signals(Mock()) as caught:
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert caught == []


def test_a_baseline_that_is_deployed_after_a_test_is_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path))
    panel = random_panel()
    tested = Look(panel.sha256, "a", "2020-06-01", "2020-12-31", "a champion")
    TrialRegistry().look(tested, panel)
    deployed = factories.config(strategy="momentum_12_1", symbols=panel.symbols)
    simulated = replace(deployed, broker=BrokerSettings(clock="clock.json"))
    for config, looks in ((simulated, 1), (replace(deployed, strategy="own.py:Mine"), 1), (deployed, 2), (deployed, 2)):
        log_deployments(config)
        assert TrialRegistry().count_looks(tested, panel) == looks
