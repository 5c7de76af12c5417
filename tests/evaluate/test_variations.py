"""Replays of recorded decisions against the backtest engine, one account at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest, simulate
from finrl_pod.evaluate.variations import (
    Job,
    RecordingStrategy,
    kernel_for,
    proportional_rate,
    simulate_recorded,
    simulate_recorded_native,
)
from finrl_pod.market.costs import Frictions, HalfSpread, PerShare, QuotedHalfSpread
from finrl_pod.market.execution import WEIGHT_TOLERANCE, ExecutionRules, MarketPeriod
from finrl_pod.types import MarketTensor
from tests.markets import random_market

BARS, ASSETS, CASH = 40, 5, 1e6


def gappy_market(seed: int, fill: str = "next") -> MarketTensor:
    return random_market(
        seed,
        bars=BARS,
        assets=ASSETS,
        gaps=0.05,
        ends={0: 25},
        starts={1: 6},
        fill=fill,
        opens=seed % 2 == 0,
        spreads=True,
    )


def random_tables(count: int, hold_probability: float = 0.0) -> torch.Tensor:
    """Target weights [W, T, N] that often exceed the cash, with NaN rows that keep the holdings."""
    rng = np.random.default_rng(count)
    tables = rng.dirichlet(np.ones(ASSETS) * 0.4, (count, BARS))
    tables[rng.random((count, BARS)) < hold_probability] = np.nan
    return torch.from_numpy(tables)


def simulate_job(market: MarketTensor, table: torch.Tensor, job: Job):
    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor | None:
        return None if bool(torch.isnan(table[t, 0])) else table[t].unsqueeze(0)

    return simulate(market, decide, job.first, job.last, job.rules, CASH)


PLAIN = (
    ExecutionRules(0.0),
    ExecutionRules(0.01),
    ExecutionRules(0.001, frictions=Frictions((HalfSpread(0.002),))),
)
QUOTED = ExecutionRules(0.001, frictions=Frictions((QuotedHalfSpread(),)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("fill", ["next", "same_close"])
@pytest.mark.parametrize("hold_probability", [0.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernel_equals_the_engine(seed: int, fill: str, hold_probability: float, dtype: torch.dtype) -> None:
    market, tables = gappy_market(seed, fill), random_tables(9, hold_probability).to(dtype)
    kernel = kernel_for(market)
    if kernel is None:
        pytest.skip("no C++ compiler")
    kinds = (*PLAIN, QUOTED)
    jobs = [Job(v % 9, v % 5, BARS - 1 - v % 4, kinds[v % 4]) for v in range(31)]
    simulated = simulate_recorded_native(
        kernel, market, tables, jobs, [proportional_rate(job.rules) or 0.0 for job in jobs], CASH
    )
    assert simulated is not None
    equity, turnover, costs = simulated
    for v, job in enumerate(jobs):
        expected = simulate_job(market, tables[job.table].double(), job)
        length = job.last - job.first + 1
        np.testing.assert_allclose(equity[v, :length], expected.equity[:, 0], rtol=1e-12)
        assert np.isnan(equity[v, length:]).all()
        assert costs[v] == pytest.approx(expected.costs.sum().item(), rel=1e-10, abs=1e-9)
        assert turnover[v] == pytest.approx(expected.turnover.sum().item(), rel=1e-10)


@pytest.mark.parametrize("assets", [1, 3, 4, 8, 30])
def test_kernel_supports_any_number_of_assets(assets: int) -> None:
    market = random_market(1, bars=20, assets=assets)
    kernel = kernel_for(market)
    if kernel is None:
        pytest.skip("no C++ compiler")
    table = torch.rand(1, 20, assets, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / assets
    simulated = simulate_recorded_native(kernel, market, table, [Job(0, 0, 19, PLAIN[1])], [0.01], CASH)
    assert simulated is not None
    np.testing.assert_allclose(
        simulated[0][0], simulate_job(market, table[0], Job(0, 0, 19, PLAIN[1])).equity[:, 0], rtol=1e-12
    )


def test_unsupported_rules_use_the_engine() -> None:
    assert [proportional_rate(rules) for rules in (*PLAIN, QUOTED)] == pytest.approx([0.0, 0.01, 0.003, 0.001])
    for rules in (
        ExecutionRules(whole_shares=True),
        ExecutionRules(short=True),
        ExecutionRules(leverage=1.5),
        ExecutionRules(buy_allocation="sequential"),
        ExecutionRules(frictions=Frictions(delay=2)),
        ExecutionRules(frictions=Frictions(delisting_return=-0.3)),
        ExecutionRules(frictions=Frictions(cash_rates=(("2020-01-01", 0.01),))),
        ExecutionRules(frictions=Frictions(participation=0.1)),
        ExecutionRules(frictions=Frictions((PerShare(0.01),))),
    ):
        assert proportional_rate(rules) is None


@pytest.mark.slow
@pytest.mark.parametrize("fill", ["next", "same_close"])
@pytest.mark.parametrize("hold_probability", [0.0, 0.6])
def test_every_job_equals_a_single_simulation(fill: str, hold_probability: float) -> None:
    market, tables = gappy_market(3, fill), random_tables(7, hold_probability)
    rules = [
        *PLAIN,
        QUOTED,
        ExecutionRules(0.001, whole_shares=True),
        ExecutionRules(0.001, frictions=Frictions((PerShare(0.01, 1.0),), cash_rates=(("2020-01-01", 0.05),))),
    ]
    jobs = [Job(v % 7, v % 3, BARS - 1 - v % 4, rules[v % len(rules)]) for v in range(30)]
    simulated = simulate_recorded(market, tables, jobs, CASH)
    for v, job in enumerate(jobs):
        expected = simulate_job(market, tables[job.table], job)
        length = job.last - job.first + 1
        np.testing.assert_allclose(simulated.equity[v, :length], expected.equity[:, 0], rtol=1e-12)
        assert np.isnan(simulated.equity[v, length:]).all()
        assert simulated.costs[v] == pytest.approx(expected.costs.sum().item(), rel=1e-10, abs=1e-9)
        assert simulated.turnover[v] == pytest.approx(expected.turnover.sum().item(), rel=1e-10)


def test_replay_of_a_recorded_strategy_has_the_metrics_of_its_backtest(market_of) -> None:
    class DriftingWeights:
        name, feature_names = "drift", ()

        def target_weights(self, window, positions):
            if len(window.times) % 5:
                return None
            score = np.nan_to_num(window.close[-1] / window.close[0])
            return score / score.sum()

    panel, market = market_of(50 * np.exp(np.random.default_rng(0).normal(0, 0.02, (60, 3)).cumsum(0)))
    strategy = RecordingStrategy(DriftingWeights())
    result = backtest(strategy, panel, MarketPeriod(market, 4, 50, ExecutionRules(0.002), 1e5))
    tables = torch.from_numpy(strategy.table(market.times)).unsqueeze(0)
    simulated = simulate_recorded(
        market, tables, [Job(0, 4, 50, ExecutionRules(0.002)), Job(0, 4, 50, ExecutionRules(0.02))], 1e5
    )
    same, at_higher_cost = simulated.metrics()
    assert same == pytest.approx(dict(result.metrics), rel=1e-9)
    assert at_higher_cost["cumulative_return"] < same["cumulative_return"]


def test_replay_of_a_strategy_without_decisions_stays_in_cash(market_of) -> None:
    class NoDecisions:
        name, feature_names = "rest", ()

        def target_weights(self, window, positions):
            return None

    panel, market = market_of(np.full((30, 3), 10.0))
    strategy = RecordingStrategy(NoDecisions())
    backtest(strategy, panel, MarketPeriod(market, 4, 20, ExecutionRules(), 1e5))
    table = strategy.table(market.times)
    assert table.shape == (30, 3)
    simulated = simulate_recorded(market, torch.from_numpy(table).unsqueeze(0), [Job(0, 4, 20, ExecutionRules())], 1e5)
    assert simulated.metrics()[0]["cumulative_return"] == 0.0


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda x: x.__setitem__((1, 5, 2), -0.1), "negative"),
        (lambda x: x.__setitem__((1, 5, 2), -2 * WEIGHT_TOLERANCE), "negative"),
        (lambda x: x.__setitem__((1, 5, 2), 1.5), "add up to"),
        (lambda x: x.__setitem__((1, 5, 2), float("nan")), "finite"),
        (lambda x: x.__setitem__((1, 5, 2), float("inf")), "finite"),
    ],
)
def test_invalid_targets_are_refused_with_their_bar(corrupt, message: str, native: bool, monkeypatch) -> None:
    if not native:
        monkeypatch.setattr("finrl_pod.evaluate.variations.kernel_for", lambda market: None)
    tables = random_tables(3)
    corrupt(tables)
    with pytest.raises(InputError, match=f"2020-01-06 .*{message}"):
        simulate_recorded(gappy_market(1), tables, [Job(w, 2, 20, ExecutionRules()) for w in range(3)], CASH)


def test_invalid_jobs_are_refused() -> None:
    tables = random_tables(2)
    for job in (Job(2, 0, 5, ExecutionRules()), Job(0, 5, 5, ExecutionRules()), Job(0, 0, BARS, ExecutionRules())):
        with pytest.raises(InputError):
            simulate_recorded(gappy_market(1), tables, [job], CASH)
    with pytest.raises(InputError, match="shape"):
        simulate_recorded(gappy_market(1), tables[:, :5], [Job(0, 0, 3, ExecutionRules())], CASH)
