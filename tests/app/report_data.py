"""Synthetic results, leaderboard and report, with names that contain HTML."""

from __future__ import annotations

from typing import Any

import numpy as np
from finrl_pod_app.report.builder import build_report
from finrl_pod_app.report.html import render
from finrl_pod_app.report.records import Champion, RunReport, Timing, make_report

from finrl_pod.promotion.verdict import Verdict
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import BacktestResult, Panel, Score

SYMBOLS = (
    *("AAPL", "AMD", "BAC", "BBY", "CVX", "GE", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "MSFT", "PEP", "PFE", "PG"),
    *("RRC", "UNH", "WMT", "<XOM>"),
)
STRATEGIES = (
    *("champion", "equal_weight", "equal_weight_buy_and_hold", "index", "minimum_variance", "mean_variance"),
    *("hierarchical_risk_parity", "momentum_12_1"),
)


def synthetic_results(bars: int = 1006, names: tuple[str, ...] = STRATEGIES) -> dict[str, BacktestResult]:
    """Backtest results by strategy: random walks around a common market return."""
    rng = np.random.default_rng(3)
    days = np.arange(np.datetime64("2019-01-02"), np.datetime64("2030-01-01"))
    times = days[np.is_busday(days)][:bars].astype("datetime64[ns]")
    market = rng.normal(4e-4, 0.011, bars)
    market[290:320] -= 0.012
    by_name = {}
    for i, name in enumerate(names):
        returns = market * (0.7 + 0.1 * i) + rng.normal(1e-4, 0.004, bars)
        equity = 1e6 * np.exp(np.cumsum(returns))
        noise = np.cumsum(rng.normal(0, 0.08, (bars, len(SYMBOLS))), axis=0)
        weights = 0.97 * np.exp(noise) / np.exp(noise).sum(1, keepdims=True)
        metrics = {
            "cumulative_return": equity[-1] / equity[0] - 1,
            "annual_return": (equity[-1] / equity[0]) ** (252 / bars) - 1,
            "annual_volatility": returns.std() * 252**0.5,
            "sharpe": returns.mean() / returns.std() * 252**0.5,
            "sortino": float("nan") if name == "index" else 1.1,
            "calmar": 0.5,
            "max_drawdown": (equity / np.maximum.accumulate(equity)).min() - 1,
            "turnover": 0.5 + 3 * (i == 0),
            "costs_paid": 12_345.6 * (i + 1),
        }
        by_name[name] = BacktestResult(
            name, times, SYMBOLS, equity, weights, np.full(bars, 0.01), np.full(bars, 10.0), metrics
        )
    return by_name


def synthetic_document(results: dict[str, BacktestResult], config: RunConfig | None = None) -> dict[str, Any]:
    """The contents of report.json for synthetic results."""
    return synthetic_report(results, config).to_dict()


def page_of(document: dict[str, Any], results: dict[str, BacktestResult], name: str = "", created: str = "") -> str:
    """The page of a report with the given contents."""
    return render(make_report(document), results, name, created)


def synthetic_report(results: dict[str, BacktestResult], config: RunConfig | None = None) -> RunReport:
    """The report of synthetic results."""
    bars = 40
    prices = np.full((bars, len(SYMBOLS)), 10.0)
    times = np.datetime64("1990-01-02", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    panel = Panel(
        times,
        SYMBOLS,
        prices,
        np.ones(prices.shape, bool),
        name="sample",
        source="skfolio",
        flaws=(
            "The universe was picked with hindsight: equal weight has a Sharpe ratio near 1.0 on it.",
            "No open, high, low or volume.",
            *(f"<b>AAPL</b> moved by {40 + i}% on 2000-09-{i + 1:02d}." for i in range(12)),
        ),
    )
    board = [
        Score(
            f"g{5 - i // 4}p{i % 8}",
            f"g{4 - i // 4}p{(i * 3) % 8}" if i % 5 else None,
            5 - i // 4,
            i % 8,
            100_000 * (6 - i // 4),
            1.31 - 0.03 * i,
            {
                "learning_rate": 1e-3 * 1.25 ** (i % 3),
                "gamma": 0.95,
                "entropy_coefficient": 1e-4 * (i % 4),
                "clip_range": 0.2,
            },
        )
        for i in range(16)
    ]
    members = tuple(score.id for score in board[:4])
    return build_report(
        config=config or RunConfig(seed=7),
        panel=panel,
        splits={
            "train": ("1990-01-02", "2015-12-23"),
            "validation": ("2016-01-04", "2018-12-21"),
            "test": ("2019-01-02", "2022-12-28"),
        },
        results=results,
        versions={"finrl_pod": "0.1.0", "torch": "2.13.0"},
        leaderboard=board,
        verdict=Verdict(
            promoted=False,
            reasons=(
                "its validation Sharpe ratio of 1.31 is above that of every baseline, the best being 1.22 of "
                "minimum_variance",
                "the 90% interval of its test log growth over equal weight, -0.8 to 3.1 bp a day, contains zero",
            ),
        ),
        parts={
            "champion": Champion(
                id="g5p0+3",
                algorithm="ppo",
                members=members,
                shares=(0.5, 0.5),
                roots=("g0p0", "g0p1"),
                mean_correlation=0.42,
                selection="greedy",
                lineage={members[1]: ("g4p3", "g2p1", "g0p1")},
            ),
            "timing": Timing(
                samples=4_800_000,
                samples_per_second=29_740.0,
                preparation_seconds=4.2,
                training_seconds=161.4,
                scoring_seconds=6.3,
                backtests_seconds=12.5,
                audit_seconds=17.2,
                report_seconds=2.3,
                total_seconds=203.9,
            ),
        },
    )
