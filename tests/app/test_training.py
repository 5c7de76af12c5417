"""Running a tournament and backtesting a finished run."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.evaluation.audit import audit_run
from finrl_pod_app.evaluation.sweeps import run_sweep
from finrl_pod_app.prices.stored_prices import backtest_period
from finrl_pod_app.report.opening import opening
from finrl_pod_app.report.records import parse_report
from finrl_pod_strategies.baselines import BASELINES

from finrl_pod.errors import ConfigError, DataError, InputError, Interrupted, RunError, SetupError
from finrl_pod.evaluate.active_management import BENCHMARK_METRICS
from finrl_pod.evaluate.metrics import METRIC_NAMES
from finrl_pod.evaluate.tearsheet import TEAR_SHEET_METRICS
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.settings.run import PPOConfig, RunConfig, SplitConfig
from finrl_pod.tournament.progress import Progress
from tests.app.small_run import fill_store, run_backtest, run_tournament, small_config, small_panel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root, threads = tmp_path_factory.mktemp("store"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(root))
        patch.setenv("FINRL_POD_HOME", str(root / "home"))  # a champion that others tested is not audited again
        fill_store(root)
        yield root
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    """The folder of a finished run and its progress reports."""
    folder, reports = tmp_path_factory.mktemp("runs") / "run", list[Progress]()
    run_tournament(small_config(), folder, device="cpu", progress=reports.append)
    return folder, reports


@pytest.fixture(scope="module")
def out(finished: tuple[Path, list[Progress]]) -> Path:
    """The folder of a finished run."""
    return finished[0]


def report(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return values


def without_timings(document: dict[str, Any]) -> dict[str, Any]:
    copy = json.loads(json.dumps(document))
    copy["timing"] = copy["timing"]["samples"]
    return dict(copy)


def test_report_is_complete(out: Path) -> None:
    document, config = report(out), small_config()
    assert {"name", "sha256", "symbols", "start", "end", "columns", "flaws"} <= document["data"].keys()
    assert document["data"]["sha256"] == small_panel().sha256
    assert document["splits"] == {
        "train": ["2020-01-01", "2021-03-29"],  # minus an embargo of two bars
        "validation": ["2021-04-01", "2021-06-28"],
        "test": ["2021-07-01", "2021-10-31"],
        "embargo": 2,
    }
    assert {"id", "algorithm", "members", "lineage"} <= document["champion"].keys()
    for row in document["leaderboard"]:
        assert {"id", "parent", "generation", "score", "hyperparameters"} <= row.keys()
    assert document["test"]["strategies"].keys() == {"champion", "mandate_at_tilt_zero", *BASELINES} - {"savings_plan"}
    compared = {*(metric.name for metric in BENCHMARK_METRICS), "effective_number", "holdings_beta"}
    for name, metrics in document["test"]["strategies"].items():
        assert metrics.keys() == compared | {*METRIC_NAMES, *(metric.name for metric in TEAR_SHEET_METRICS)}, name
    index = document["test"]["strategies"]["index"]
    assert (index["alpha"], index["beta"], index["holdings_beta"], index["years_to_show"]) == (0.0, 1.0, 1.0, None)
    assert document["verdict"].keys() == {"promoted", "reasons", "rules", "trials", "looks", "edge", "statistics"}
    timing = document["timing"]
    assert timing["samples"] == 3 * 3 * 128
    parts = {name: seconds for name, seconds in timing.items() if name.endswith("_seconds")}
    assert parts.keys() >= {f"{part}_seconds" for part in ("training", "scoring", "audit", "report", "total")}
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(2 * timing["total_seconds"])
    assert timing["samples_per_second"] >= timing["samples"] / timing["training_seconds"]
    assert document["mandate"] == {**dataclasses.asdict(config.mandate), "groups": []}
    sharpes = {name: metrics["sharpe"] for name, metrics in document["test"]["strategies"].items()}
    added, edge = document["added"], document["verdict"]["edge"]
    assert added["value"] == pytest.approx(sharpes["champion"] - sharpes["mandate_at_tilt_zero"], abs=1e-9)
    # One reference and one interval.
    assert added["base"] == edge["reference"] == "mandate_at_tilt_zero"
    assert (added["active_return"], added["alpha"]) == (edge["active_return"], edge["alpha"])
    assert (edge["portfolio"], edge["is_demonstration"]) == ("equal_weight", False)
    assert 0 < document["practically_base"]["active_share"] <= document["practically_base"]["allowed"]
    assert 0.15 < document["practically_base"]["allowed"] < 0.3
    assert document["mandate_usage"].keys() == {"validation", "test"}
    assert document["seed"] == 5
    assert {"torch", "finrl_pod"} <= {name.replace("-", "_") for name in document["versions"]}
    assert document["config_sha256"] == config.sha256
    assert (out / "report.html").stat().st_size > 100_000


def test_champion_is_the_best_of_the_leaderboard(out: Path) -> None:
    document = report(out)
    ids = [row["id"] for row in document["leaderboard"]]
    assert document["champion"]["members"] == ids[:2]
    assert [row["score"] for row in document["leaderboard"]] == sorted(
        (row["score"] for row in document["leaderboard"]), reverse=True
    )
    parents = json.loads((out / "state.json").read_text())["parents"]
    for member, line in document["champion"]["lineage"].items():
        walked, current = [], parents[member]
        while current is not None:
            walked.append(current)
            current = parents[current]
        assert line == walked


def test_equal_seeds_give_equal_reports(out: Path, tmp_path: Path) -> None:
    returned = run_tournament(small_config(), tmp_path / "again", device="cpu")
    assert without_timings(returned) == without_timings(report(out))
    assert report(tmp_path / "again") == json.loads(json.dumps(returned))


def test_resuming_a_finished_run_writes_the_same_report(out: Path) -> None:
    before = without_timings(report(out))
    (out / "report.json").unlink()
    run_tournament(small_config(), out, resume=True, device="cpu")
    assert without_timings(report(out)) == before


def test_a_run_without_a_test_leaves_the_test_period_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    config, run = small_config(generations=1), tmp_path / "run"
    document = run_tournament(config, run, device="cpu", test=False)
    assert document["split"] == "validation"
    assert document["in_sample"].startswith("Warning")
    assert document["detectable"]["look"] == 1
    assert document["detectable"]["difference"] == pytest.approx(
        document["detectable"]["ratio"] * document["added"]["tracking_error"]
    )
    page = (run / "report.html").read_text()
    assert all(html.escape(sentence) in page for sentence in opening(parse_report(document)))
    unseen = " to ".join(document["detectable"][end] for end in ("start", "end"))
    shown = {"validation": " to ".join(document["splits"]["test"]), "test": f"{unseen}, unseen"}
    assert all(f"<dt>{name}</dt><dd>{period}</dd>" in page for name, period in shown.items())
    usage = page.partition('<section id="mandate">')[2].partition("</section>")[0]
    assert usage.count(">validation<") == 1
    assert ">test<" not in usage
    assert not (run / "report.json").exists()
    assert not (run / "verdict.json").exists()
    assert run_backtest(run)["split"] == "validation"  # until there is a verdict
    assert [entry.looks for entry in TrialRegistry().data_sets()] == [()]
    verdict = run_tournament(config, run, resume=True, device="cpu")["verdict"]
    assert verdict["looks"] == 1
    assert run_backtest(run)["split"] == "test"
    tested_page = (run / "report.html").read_text()
    run_tournament(config, run, device="cpu", resume=True, test=False)
    assert (run / "report.html").read_text() == tested_page


def test_every_stage_is_reported(finished: tuple[Path, list[Progress]]) -> None:
    reports = finished[1]
    assert list(dict.fromkeys(progress.stage for progress in reports)) == [
        "reading prices and features",
        *(f"training generation {i} of 3" for i in (1, 2, 3)),
        "validating the champion and the baselines",
        *(
            f"auditing the champion: {check}"
            for check in ("leakage", "determinism", "look-ahead", "warm-up", "fills", "data")
        ),
        "testing the champion and the baselines",
        "writing the report",
    ]
    assert reports[-1].best is not None


def test_ctrl_c_keeps_finished_generations(out: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "training generation 3 of 3":
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(Interrupted, match=r"interrupted.* kept in .* --resume --out") as caught:
        run_tournament(small_config(), folder, device="cpu", progress=stop)
    assert caught.value.exit_code == 130
    assert json.loads((folder / "state.json").read_text())["generation"] == 1
    assert without_timings(run_tournament(small_config(), folder, resume=True, device="cpu")) == without_timings(
        report(out)
    )


# ---------------------------------------------------------------------- backtests


def test_backtesting_a_run_reproduces_its_report(out: Path) -> None:
    document = run_backtest(out)
    assert document["test"]["strategies"]["champion"] == report(out)["test"]["strategies"]["champion"]
    assert list(document["test"]["strategies"]) == ["champion", "equal_weight", "index", "mandate_at_tilt_zero"]
    assert document["splits"]["test"] == ["2021-07-01", "2021-10-31"]
    assert "champion" not in document
    assert document["verdict"] is None
    for part in ("mandate", "added", "practically_base", "stop_rule"):
        assert document[part] == report(out)[part]
    assert document["mandate_usage"] == {"test": report(out)["mandate_usage"]["test"]}


@pytest.mark.parametrize("name", ["equal_weight", "equal_weight_buy_and_hold", "index", "momentum_12_1"])
def test_baseline_alone_matches_the_one_in_the_report(name: str, out: Path) -> None:
    document = run_backtest(name, data="main", start="2021-07-01", end="2021-10-31")
    assert document["test"]["strategies"][name] == report(out)["test"]["strategies"][name]
    assert set(document["test"]["strategies"]) == {name, "equal_weight", "index"}


def test_other_costs_and_cash(out: Path) -> None:
    def champion(**terms: float) -> dict[str, float]:
        metrics: dict[str, float] = run_backtest(out, **terms)["test"]["strategies"]["champion"]  # type: ignore[arg-type]
        return metrics

    plain, free, dear, rich = champion(), champion(cost_bps=0.0), champion(cost_bps=50.0), champion(cash=2_000_000.0)
    assert free["costs_paid"] == 0
    assert free["cumulative_return"] > plain["cumulative_return"] > dear["cumulative_return"]
    assert rich["costs_paid"] == pytest.approx(2 * plain["costs_paid"])
    assert rich["sharpe"] == pytest.approx(plain["sharpe"])


def test_sweep_uses_the_settings_of_its_run(out: Path) -> None:
    rows = run_sweep([out, "equal_weight"], costs=[10.0]).to_dict()["rows"]
    assert [(row["strategy"], row["start"], row["end"]) for row in rows] == [
        ("champion", "2021-07-01", "2021-10-31"),
        ("equal_weight", "2021-07-01", "2021-10-31"),
    ]
    for row in rows:
        expected = report(out)["test"]["strategies"][row["strategy"]]
        assert [row[name] for name in METRIC_NAMES] == pytest.approx([expected[name] for name in METRIC_NAMES])


def test_equivariant_champion_runs_on_other_data(out: Path) -> None:
    document = run_backtest(out, data="other")
    assert document["data"]["symbols"] == ["X", "Y", "Z"]
    assert set(document["test"]["strategies"]) == {
        "champion",
        "equal_weight",
        "mandate_at_tilt_zero",
    }  # it has no index
    assert document["splits"]["test"] == ["2020-01-01", "2021-11-30"]  # all of it
    assert document["test"]["strategies"]["champion"]["turnover"] > 0


def test_mlp_is_refused_on_another_universe(tmp_path: Path) -> None:
    config = dataclasses.replace(
        small_config(generations=1, pods=1, champion=1),
        agent=PPOConfig(policy="mlp", hidden=(4, 4), horizon=8, minibatches=2),
    )
    run_tournament(config, tmp_path / "run", device="cpu")
    assert run_backtest(tmp_path / "run")["test"]["strategies"]["champion"]
    with pytest.raises(RunError, match="trained on 4 symbols"):
        run_backtest(tmp_path / "run", data="other")


def test_report_is_written_to_out(tmp_path: Path) -> None:
    document = run_backtest("index", data="main", out=tmp_path / "deep" / "folder")
    assert report(tmp_path / "deep" / "folder") == json.loads(json.dumps(document))
    assert (tmp_path / "deep" / "folder" / "report.html").exists()


def test_changed_data_is_refused(out: Path, store: Path) -> None:
    from finrl_pod.data.store import Store

    Store(store).save(small_panel(seed=99))
    try:
        with pytest.raises(DataError, match=r"prices of 'main' have changed since the run .*, or pass --data main"):
            run_backtest(out)
        with pytest.raises(DataError, match=r"'main' have changed since the run .* under any name$"):
            audit_run(out)
        with pytest.raises(DataError, match=r"'main' have changed since the run .* under any name$"):
            run_tournament(small_config(), out, resume=True, device="cpu")
        assert run_backtest(out, data="main")  # data requested by name
    finally:
        Store(store).save(small_panel())


def test_a_run_finds_its_prices_under_another_name(out: Path, store: Path) -> None:
    from finrl_pod.data.store import Store

    expected = run_backtest(out)["test"]["strategies"]["champion"]["sharpe"]
    panel = Store(store).load("main")
    Store(store).save(dataclasses.replace(panel, name="moved"))
    Store(store).delete("main")
    try:
        assert run_backtest(out)["test"]["strategies"]["champion"]["sharpe"] == expected
        resumed = run_tournament(small_config(), out, resume=True, device="cpu")
        assert resumed["test"]["strategies"]["champion"]["sharpe"] == expected
    finally:
        Store(store).delete("moved")
    try:
        with pytest.raises(DataError, match=r"panel 'main', on which .* is no longer stored: .* under any name$"):
            run_backtest(out)
    finally:
        Store(store).save(small_panel())


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"cost_bps": -1.0}, "cost_bps must be at least 0 and below 10000, got -1"),
        ({"cost_bps": float("nan")}, "cost_bps must be at least 0"),
        ({"cash": 0.0}, "cash must be above zero, got 0"),
        ({"cash": float("inf")}, "cash is out of its range, got inf: it must be above 0"),
        ({"data": "nothing"}, "there is no panel 'nothing'"),
        ({"start": "2030-01-01"}, "2030-01-01 of a backtest exceeds the data, 20"),
    ],
)
def test_overrides_out_of_range_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_backtest("equal_weight", **{"data": "main", **terms})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_run_or_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run with a finished generation"):
        run_backtest(tmp_path)
    with pytest.raises(InputError, match="unknown strategy 'equal_wait'; did you mean equal_weight"):
        run_backtest("equal_wait")


# ---------------------------------------------------------------------- which bars


def dates(start: str | None, end: str | None, splits: SplitConfig | None = None) -> tuple[str, str]:
    panel = small_panel()
    first, last = backtest_period(panel, start, end, splits)
    return str(panel.times[first])[:10], str(panel.times[last])[:10]


def test_periods() -> None:
    splits = small_config().splits
    assert dates(None, None) == ("2020-01-01", "2021-11-30")
    assert dates(None, None, splits) == ("2021-07-01", "2021-10-31")
    assert dates("2021-08-01", None, splits) == ("2021-08-01", "2021-10-31")
    assert dates(None, "2021-08-01", splits) == ("2021-07-01", "2021-08-01")
    assert dates("2021-02-01", "2021-02-02") == ("2021-02-01", "2021-02-02")
    assert dates("2019-12-28", "2021-12-05") == ("2020-01-01", "2021-11-30")  # within the tolerance of a weekend


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("2019-01-01", None, "exceeds the data, 2020-01-01 to 2021-11-30"),
        (None, "2023-01-01", "exceeds the data"),
        ("2021-02-01", "2021-01-01", "start 2021-02-01 of a backtest is after its end 2021-01-01: swap"),
        ("2021-02-01", "2021-02-01", "needs at least two bars"),
        ("2021-13-01", None, "the start must be a date"),
        (None, "soon", "the end must be a date"),
        ("2021", None, "the start must be a date"),
    ],
)
def test_invalid_periods_are_refused(start: str | None, end: str | None, message: str) -> None:
    with pytest.raises(DataError) as caught:
        dates(start, end)
    assert message in str(caught.value)


# ---------------------------------------------------------------------- before anything is written


def changed(section: str, **values: Any) -> RunConfig:
    config = small_config()
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("agent", minibatches=5), r"agent\.minibatches must divide"),
        (changed("agent", horizon=41, minibatches=1), r"agent\.horizon must be at most"),
        (changed("environment", cost_bps=-1.0), r"environment\.cost_bps is out of its range, got -1"),
        (changed("environment", group=3), r"environment\.envs must be a multiple of environment\.group"),
        (changed("tournament", pods=0), r"tournament\.pods is out of its range"),
    ],
)
def test_invalid_setting_creates_no_folder(config: RunConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run_tournament(config, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()  # so that the fixed config can use the same folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no CUDA device .* --device cpu"):
        run_tournament(small_config(), tmp_path / "run", device="cuda")
    with pytest.raises(InputError, match="device must be auto, cpu or cuda, got 'tpu'"):
        run_tournament(small_config(), tmp_path / "run", device="tpu")
    assert not (tmp_path / "run").exists()
