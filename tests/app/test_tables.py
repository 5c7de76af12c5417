"""Tables of features in runs: kept and hashed with the run, audited, and read anew for decisions on newer prices."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.api.markets import stored_panel
from finrl_pod_app.cli.main import run
from finrl_pod_app.evaluation.audit import AuditScope, audit_run
from finrl_pod_app.evaluation.orders import OrderOptions, account_orders, run_champion
from finrl_pod_app.paper.sources import PromotedRun
from finrl_pod_app.prices.stored_prices import load_panel

import finrl_pod as fp
from finrl_pod.data import features
from finrl_pod.data.sources.feature_tables import missing_tables, with_newest_tables
from finrl_pod.data.store import Store
from finrl_pod.errors import InputError, RunError
from finrl_pod.paper.execution.decision import Holdings, decide
from finrl_pod.paper.execution.price_check import CheckedPrices
from finrl_pod.settings.run import FeatureConfig, RunConfig, TableConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Floats, Positions, Window
from tests.app.small_run import isolated_folders, run_backtest, run_tournament, small_config, small_panel

MONTHS = [f"{year}-{month:02d}-15" for year in (2020, 2021) for month in range(1, 13)]
MACRO = "known_at,level\n" + "".join(f"{day},{i % 5}\n" for i, day in enumerate(MONTHS))
FIRM = "symbol,known_at,period,earnings\nS0,2020-01-15,2019-12-31,1\nS1,2020-01-15,2020-02-01,2\n"
TABLES = (TableConfig("macro.csv", 45.0), TableConfig("firm.csv"))
NAMES = ("return_5", "macro.level", "firm.earnings")


def config_with_tables() -> RunConfig:
    config = small_config(generations=1, pods=1, champion=1)
    return dataclasses.replace(config, features=FeatureConfig(NAMES, TABLES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the tables and a run."""
    root = tmp_path_factory.mktemp("tables")
    with isolated_folders(root), contextlib.chdir(root):
        Path("macro.csv").write_text(MACRO)
        Path("firm.csv").write_text(FIRM)
        run_tournament(config_with_tables(), root / "run")
        yield root


@pytest.fixture
def elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without the tables, with a copy of the run whose folder of origin is gone."""
    shutil.copytree(folder / "run", tmp_path / "moved")
    file = tmp_path / "moved" / "config.json"
    file.write_text(file.read_text().replace(json.dumps(str(folder)), json.dumps(str(tmp_path / "gone"))))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_report_has_the_hashes(folder: Path) -> None:
    report = json.loads((folder / "run" / "report.json").read_text())
    tables = {table["name"]: table for table in report["data"]["tables"]}
    assert tables["macro"]["sha256"] == hashlib.sha256(MACRO.encode()).hexdigest()
    assert (tables["firm"]["rows"], tables["firm"]["columns"]) == (2, ["earnings"])
    assert tables["firm"]["sha256"] in (folder / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_moved_run_is_tested_on_the_tables_that_it_keeps(folder: Path, elsewhere: Path) -> None:
    original = run_backtest(folder / "run", split="validation")
    (elsewhere / "macro.csv").write_text("known_at,level\n2020-01-01,5\n")  # another file of that name
    moved = run_backtest(elsewhere / "moved", split="validation")
    assert moved["test"]["strategies"] == original["test"]["strategies"]
    stored = elsewhere / "moved" / "own_files" / Path(RunDirectory(folder / "run").config.features.tables[0].file).name
    stored.write_text(MACRO.replace(",4", ",3"))
    with pytest.raises(InputError, match="was changed"):
        run_backtest(elsewhere / "moved", split="validation")


@pytest.mark.slow
def test_the_audit_probes_tables_and_warns_of_early_values(elsewhere: Path) -> None:
    audit = audit_run(elsewhere / "moved", AuditScope(probes=12))
    assert audit.clean, [finding for finding in audit.findings if finding.status == "fail"]
    warnings = [finding.message for finding in audit.findings if finding.status == "warn"]
    assert any("firm.csv: 1 of 2 rows are known before their period ends" in message for message in warnings)


@pytest.mark.slow
def test_orders_and_the_daemon_read_newer_values(elsewhere: Path) -> None:
    strategy, config = run_champion(elsewhere / "moved")
    panel = load_panel(config)
    assert "macro.csv" in missing_tables(strategy)
    source = PromotedRun(elsewhere / "moved", panel.symbols, allow_unpromoted=True)
    assert "macro.csv" in source.current().warning
    before = account_orders(strategy, config, panel, {}, OrderOptions(cash=1e4, date="2021-11-29"))
    Path("macro.csv").write_text(MACRO + "2021-11-20,1000\n")
    Path("firm.csv").write_text(FIRM)
    strategy, config = run_champion(elsewhere / "moved")
    assert missing_tables(strategy) == ""
    daemon_strategy = PromotedRun(elsewhere / "moved", panel.symbols, allow_unpromoted=True).current()
    assert daemon_strategy.warning == ""
    newest = with_newest_tables(panel, strategy)
    assert features.compute(newest, ("macro.level",))[-1, :, 0].tolist() == [1000.0] * 4
    after = account_orders(strategy, config, panel, {}, OrderOptions(cash=1e4, date="2021-11-29"))
    assert [row.shares for row in after.orders] != [row.shares for row in before.orders]
    closes = {symbol: Decimal(str(price)) for symbol, price in zip(panel.symbols, panel.close[-1], strict=True)}
    prices = CheckedPrices(dataclasses.replace(panel, tables=()), closes, {}, frozenset())
    decision = decide(daemon_strategy.strategy, prices, Holdings({}, Decimal(10_000), closes))
    assert [row[1] for row in json.loads(decision.inputs)["features"]] == [1000.0] * 4


@pytest.mark.slow
def test_a_run_is_resumed_with_the_tables_that_it_started_with(elsewhere: Path) -> None:
    config = config_with_tables()
    Path("macro.csv").write_text(MACRO + "2021-11-20,1000\n")
    report = run_tournament(config, elsewhere / "moved", resume=True)
    assert report["data"]["tables"][0]["sha256"] == hashlib.sha256(MACRO.encode()).hexdigest()
    older = dataclasses.replace(TABLES[0], max_age_days=5.0)
    changed = dataclasses.replace(config, features=FeatureConfig(NAMES, (older, TABLES[1])))
    with pytest.raises(RunError, match=r"features\.tables"):
        run_tournament(changed, elsewhere / "moved", resume=True)


class Sees:
    """Records the features of each bar."""

    feature_names = ("macro.level", "firm.earnings")

    def __init__(self) -> None:
        self.features: dict[str, Floats] = {}

    def target_weights(self, window: Window, positions: Positions) -> None:
        assert window.features is not None
        self.features[str(window.times[-1])[:10]] = window.features


def test_python_markets_have_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("macro.csv").write_text(MACRO)
    Path("firm.csv").write_text(FIRM)
    tables = [{"file": "macro.csv", "max_age_days": 45}, {"file": "firm.csv"}]
    settings = {"features.names": list(NAMES), "features.tables": tables}
    strategy = Sees()
    fp.backtest(
        strategy, fp.make_market(small_panel(), "quick", settings=settings), start="2021-01-10", end="2021-01-20"
    )
    assert strategy.features["2021-01-15"][:, 0].tolist() == [1.0] * 4  # of December
    assert strategy.features["2021-01-16"][:, 0].tolist() == [2.0] * 4
    assert np.array_equal(strategy.features["2021-01-16"][:, 1], [1.0, 2.0, np.nan, np.nan], equal_nan=True)


@pytest.mark.slow
def test_an_agent_of_python_is_tested_with_newer_values_on_newer_prices(tmp_path: Path) -> None:
    with isolated_folders(tmp_path), contextlib.chdir(tmp_path):
        Path("macro.csv").write_text(MACRO)
        Path("firm.csv").write_text(FIRM)
        prices = small_panel("mine", seed=3)
        market = fp.make_market(prices, config_with_tables())
        agent = fp.train(market, 64)
        Path("macro.csv").write_text(MACRO + "2021-07-03,1000\n")
        on_market, on_prices = (fp.backtest(agent, x, split="all").to_frame() for x in (market, prices))
        assert not on_market.equals(on_prices)
        assert on_market[:"2021-07-03"].equals(on_prices[:"2021-07-03"])  # type: ignore[misc]
        assert stored_panel(market.panel) == "mine"
        assert Store().show("mine").flaws == prices.flaws


def test_features_of_a_config_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with isolated_folders(tmp_path), contextlib.chdir(tmp_path):
        Path("macro.csv").write_text(MACRO)
        Path("mine.toml").write_text('[data]\nname = "main"\n[features]\ntables = [{file = "macro.csv"}]\n')
        assert run(["features", "list", "--config", "mine.toml", "--json"]) == 0
        names = json.loads(capsys.readouterr().out)["features"]
        assert "macro.level" in names
        assert "return_5" in names
