"""Build the report of a run: data, splits, rules, results, tear sheet, verdict and other parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finrl_pod.errors import RunError
from finrl_pod.evaluate import tearsheet
from finrl_pod.evaluate.active_management import (
    BETA_BARS,
    HOLDINGS_BETA,
    benchmark_metrics,
    holdings_metrics,
    trailing_betas,
)
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.files import write_bytes
from finrl_pod.market.costs import ERA_COSTS_BPS
from finrl_pod.market.venue import rates_at
from finrl_pod.promotion.verdict import Verdict
from finrl_pod.settings.run import EnvironmentConfig, RunConfig
from finrl_pod.types import BacktestResult, Floats, Panel, Score, Times
from finrl_pod_app.report import records
from finrl_pod_app.report.columns import CHAMPION

BENCHMARKS = ("index", "equal_weight")
DAILY = 252  # bars of a year
UNUSUAL = 1.6  # other panels have this factor more or fewer bars (365: a market that never closes)
CURVES_FILE = "curves.safetensors"
MAX_CURVES_BYTES = 64_000_000
_SECONDS = "datetime64[s]"


def build_report(
    *,
    config: RunConfig,
    panel: Panel,
    splits: Mapping[str, Sequence[str]],
    results: Mapping[str, BacktestResult],
    versions: Mapping[str, str],
    leaderboard: Sequence[Score] = (),
    verdict: Verdict | None = None,
    cost_curve: Sequence[Mapping[str, float]] | None = None,
    cost_bps: float | None = None,
    benchmark: str | None = None,
    band: records.Band | None = None,
    parts: Mapping[str, object],
) -> records.RunReport:
    """The report of a run or, without champion, leaderboard, verdict and timing, of a backtest.

    splits: first and last date of each in ISO format, "test" required. results: test results by strategy. cost_curve:
    of the strategy that the report is about, from `variations.cost_curve`. cost_bps: proportional cost, by default of
    the config. benchmark: result that the others are compared with, by default the first of `BENCHMARKS` that was
    tested. parts: other parts of `RunReport` by name; `rules` replaces the sentences on the market.
    """
    benchmark = benchmark or next((name for name in BENCHMARKS if name in results), None)
    betas = None if benchmark is None else _asset_betas(panel, results[benchmark])
    values = {
        "data": {
            "name": panel.name,
            "sha256": panel.sha256,
            "symbols": panel.symbols,
            "start": str(panel.times[0])[:10],
            "end": str(panel.times[-1])[:10],
            "bars": len(panel.times),
            "columns": panel.columns,
            "adjusted": panel.adjusted,
            "source": panel.source,
            "flaws": panel.flaws,
            "chosen": config.data.chosen,
            "price_only_index": panel.benchmark is not None and panel.benchmark.price_only,
            "tables": [
                {
                    "name": table.name,
                    "sha256": table.sha256,
                    "columns": table.columns,
                    "rows": len(table.known_at),
                    "start": str(table.known_at[0])[:10],
                    "end": str(table.known_at[-1])[:10],
                }
                for table in panel.tables
            ],
        },
        "splits": {**splits, "embargo": config.splits.embargo},
        "rules": rule_sentences(config.environment, panel),
        "leaderboard": leaderboard_rows(leaderboard),
        "test": {
            "strategies": {name: strategy_metrics(name, results, benchmark, betas) for name in results},
            "benchmark": benchmark,
            "yearly": {name: yearly_returns(result.times, result.equity) for name, result in results.items()},
            "tearsheet": tear_sheet(results),
            "cost_curve": cost_curve,
            "cost_bps": config.environment.cost_bps if cost_bps is None else cost_bps,
            "band": band,
        },
        "verdict": None if verdict is None else verdict.to_dict(),
        "seed": config.seed,
        "versions": versions,
        "config_sha256": config.sha256,
    }
    report = records.make_report({**values, **parts})
    weights = active_weights(report, results)
    return report if weights is None else report.model_copy(update={"active_weights": weights})


def active_weights(report: records.RunReport, results: Mapping[str, BacktestResult]) -> records.ActiveWeights | None:
    """Mean weights of the subject less the weights of its base; None without a base that holds the same assets.

    Of an index, the weights of its stocks are unknown: equal weight takes its place.
    """
    account = results[report.subject]
    for base in (report.base, "equal_weight"):
        if base in results and base != report.subject and results[base].symbols == account.symbols:
            difference = account.weights.mean(0) - results[base].weights.mean(0)
            by_asset = dict(zip(account.symbols, difference.tolist(), strict=True))
            return records.ActiveWeights(base=base, by_asset=by_asset)
    return None


def leaderboard_rows(leaderboard: Sequence[Score]) -> tuple[records.LeaderboardRow, ...]:
    """The rows of the leaderboard of a report."""
    return tuple(
        records.LeaderboardRow.model_validate(
            vars(score) | {"assignment": score.generation, "metrics": dict(score.metrics)}
        )
        for score in leaderboard
    )


def strategy_metrics(
    name: str, results: Mapping[str, BacktestResult], benchmark: str | None, betas: Floats | None = None
) -> dict[str, float]:
    """Metrics of a result, of its holdings, and against the benchmark, whose own beta is 1.

    betas: [T, N] of the assets of the panel to the benchmark.
    """
    result = results[name]
    metrics = {**result.metrics, **tearsheet.tear_sheet_metrics(result)}
    if benchmark is None:
        return metrics | holdings_metrics(result.weights)
    base = results[benchmark]
    metrics |= benchmark_metrics(result.equity, base.equity, bars_per_year(result.times), result.risk_free)
    if base is result:
        return metrics | {HOLDINGS_BETA.name: 1.0} | holdings_metrics(result.weights)
    if betas is not None and betas.shape == result.weights.shape:
        metrics[HOLDINGS_BETA.name] = float((result.weights * betas).sum(1).mean())
    return metrics | holdings_metrics(result.weights, base.weights if base.symbols == result.symbols else None)


def _asset_betas(panel: Panel, benchmark: BacktestResult) -> Floats | None:
    """Trailing betas [T, N] of the assets to a benchmark on its bars; None if the panel has others.

    Before its first bar its returns equal the index, or else the mean of the assets.
    """
    first = int(np.searchsorted(panel.times, benchmark.times[0]))
    last = first + len(benchmark.times)
    if not np.array_equal(panel.times[first:last], benchmark.times):
        return None
    start = max(first - BETA_BARS, 0)
    returns = pd.DataFrame(panel.close[start:last]).pct_change(fill_method=None)
    index = panel.benchmark
    prior = returns.mean(axis=1)
    if index is not None and benchmark.symbols == (index.name,):
        prior = pd.Series(index.close[start:last]).pct_change(fill_method=None)
    market: Floats = np.array(prior, dtype=np.float64)
    market[first + 1 - start :] = simple_returns(benchmark.equity)
    return trailing_betas(returns.to_numpy(), market)[first - start :]


def rule_sentences(rules: EnvironmentConfig, panel: Panel, flows: Floats | None = None) -> list[str]:
    """The market rules as sentences. Settings that inflate results or distort prices add one beginning "Warning".

    flows: currency paid in at each bar, negative if taken out.
    """
    sentences = [
        f"Accounts start with {rules.cash:,.0f} in cash; amounts are in the currency of the prices.",
        f"Transaction cost: {rules.cost_bps:g} basis points of the traded value.",
        *cost_sentences(rules, panel),
    ]
    if rules.fill == "same_close":
        sentences.append(
            "Warning: orders fill at the close they were decided on (fill = same_close), which cannot be traded; "
            "results of strategies that react to the last bar are inflated."
        )
    else:
        price = "open" if panel.open is not None else "close, because the data has no opening prices"
        moment = "at the next bar's" if rules.delay == 1 else f"{rules.delay} bars later, at the"
        sentences.append(f"Decisions use closing prices; orders fill {moment} {price}.")
    if meaning := bars_sentence(panel):
        sentences.append(meaning)
    if not rules.whole_shares:
        sentences.append("Fractional shares.")
    elif panel.adjusted or panel.dividend is not None:
        sentences.append(
            "Warning: whole shares on adjusted prices. Past prices are scaled down for later splits and dividends, so "
            "rounding differs from real trading."
        )
    else:
        sentences.append("Whole shares.")
    if rules.buy_allocation == "sequential":
        sentences.append("When cash is short, buys fill one by one, the largest action first.")
    if rules.short or rules.leverage > 1:
        short = "are allowed" if rules.short else "are not allowed"
        sentences.append(f"Gross exposure is limited to {rules.leverage:g} times equity; short positions {short}.")
    if rules.turbulence_limit > 0:
        sentences.append(f"Agents liquidate while turbulence is above {rules.turbulence_limit:g}.")
    if flows is not None:
        deposits, withdrawals = flows[flows > 0], -flows[flows < 0]
        sentences.append(
            f"Deposits after the start: {len(deposits)}, {deposits.sum():,.0f} in all; withdrawals: "
            f"{len(withdrawals)}, {withdrawals.sum():,.0f} in all. Metrics use time-weighted returns."
        )
    if rules.tax_short or rules.tax_long:
        sentences.append(
            f"Tax on gains, in the return after tax alone: {100 * rules.tax_short:g}% on shares held for a year or "
            f"less, {100 * rules.tax_long:g}% after that; first in, first out; paid at the last bar of each year."
        )
    if rules.short:
        fee = f"{100 * rules.borrow_fee:g}% per year" if rules.borrow_fee else "nothing"
        sentences.append(f"Borrow fee of short positions: {fee}.")
    if np.isfinite(panel.close[-1]).sum() < len(panel.symbols):
        loss = f", less {-100 * rules.delisting_return:g}%" if rules.delisting_return else ""
        sentences.append(f"A delisted ticker is paid out at its last close{loss}.")
    if rules.cash_rates:
        dates = ", ".join(f"{100 * rate:g}% per year from {day}" for day, rate in rules.cash_rates)
        sentences.append(f"Cash earns {dates}; Sharpe and Sortino ratios use excess returns over it.")
    else:
        sentences.append("Cash earns nothing.")
        if panel.cash_rates:
            sentences.append("Sharpe and Sortino ratios use excess returns over US Treasury bills, by year.")
    if missing := int(np.isnan(rates_at(panel.times, rules.cash_rates or panel.cash_rates)).sum()):
        sentences.append(
            f"Warning: there is no cash rate on {missing:,} of {len(panel.times):,} bars (environment.cash_rates); "
            "Sharpe and Sortino ratios use total returns there, not excess returns."
        )
    if panel.dividend is not None:
        sentences.append(
            "Prices are not adjusted for dividends. These are paid in cash, untaxed, on the ex-date; shorts pay them."
        )
    if panel.benchmark is not None and panel.benchmark.price_only:
        sentences.append(
            f"The index is the {panel.benchmark.name} price index, without dividends; stock prices "
            f"{'exclude' if not panel.adjusted and panel.dividend is None else 'include'} them."
        )
    return sentences


def bars_sentence(panel: Panel) -> str:
    """What look-backs in bars mean on bars that are not daily; empty for daily ones."""
    year = bars_per_year(panel.times)
    if DAILY / UNUSUAL < year < DAILY * UNUSUAL:
        return ""
    days = 365.25 * DAILY / year
    return (
        f"Warning: look-backs of features and built-in strategies count bars. {DAILY} bars, a year of daily prices, "
        f"are {days:,.3g} calendar days of these; momentum_12_1 and the like do not mean months here."
    )


ERA_SENTENCE = (
    "a trade costs "
    + ", ".join(f"{bps:g} basis points before {day[:4]}" for day, bps in ERA_COSTS_BPS)
    + " (spread and commission of large US stocks, an assumption)"
)


def cost_sentences(rules: EnvironmentConfig, panel: Panel) -> list[str]:
    """Sentences on spread, commission, market impact and volume limits; none for those that are off."""
    sentences = []
    if rules.half_spread == "from data":
        sentences.append(
            "Half spread: every fill is worse by half the asset's quoted spread of that bar; none for the index."
        )
    early_bars = int((panel.times < np.datetime64(ERA_COSTS_BPS[-1][0])).sum())
    if rules.half_spread == "by era":
        sentences.append(
            f"Costs by era, on top of that: on the {early_bars:,} bars before 2001 {ERA_SENTENCE}; none for the index."
        )
    elif early_bars and rules.half_spread == "constant":
        sentences.append(
            f"Warning: {early_bars:,} bars before 2001 are charged the costs of today, but {ERA_SENTENCE}; "
            'environment.half_spread = "by era" charges that.'
        )
    if rules.half_spread_bps:
        sentences.append(f"Half spread: every fill is {rules.half_spread_bps:g} basis points worse than its price.")
    if rules.per_share or rules.per_share_minimum:
        sentences.append(
            f"Commission: {rules.per_share:g} per share, at least {rules.per_share_minimum:g} per order; none for the "
            "index."
        )
    if rules.per_share and panel.adjusted:
        sentences.append(
            "Warning: commission per share on adjusted prices. Past prices are scaled down for later splits and "
            "dividends, so more shares are charged than would have traded."
        )
    if rules.impact:
        sentences.append(
            f"Market impact: {rules.impact:g} times the bar's volatility times the square root of the order's share of "
            "the bar's volume; none for the index."
        )
    if rules.participation:
        sentences.append(
            f"Participation limit: at most {100 * rules.participation:g}% of a bar's volume; the rest is cancelled."
        )
    return sentences


def tear_sheet(results: Mapping[str, BacktestResult]) -> records.Tearsheet:
    """Numbers of the tear sheet.

    `of` is the strategy with drawdowns and monthly returns, the subject of the report. Rolling Sharpe ratio,
    return_distribution, costs and longest drawdown (in bars) are given for every strategy.
    """
    subject = subject_of(results)
    result = results[subject]
    return records.Tearsheet(
        of=subject,
        drawdowns=tuple(records.Drawdown(**vars(row)) for row in tearsheet.drawdowns(result.times, result.equity)),
        longest_drawdown={
            name: tearsheet.longest_drawdown(account.times, account.equity) for name, account in results.items()
        },
        monthly=tearsheet.monthly_returns(result.times, result.equity),
        rolling_sharpe={name: _rolling_sharpe_range(account) for name, account in results.items()},
        distribution={name: tearsheet.return_distribution(account.equity) for name, account in results.items()},
        costs={
            name: records.Costs.model_validate(tearsheet.cost_summary(account)) for name, account in results.items()
        },
    )


def subject_of(names: Collection[str]) -> str:
    """The strategy that a report is about: the champion, else the first."""
    return CHAMPION if CHAMPION in names else next(iter(names))


def bootstrap_band(equity: Floats, seed: int = 0) -> records.Band | None:
    """The bootstrap band of an equity curve with its level, or None if the curve is too short, flat or ruined."""
    if len(equity) <= tearsheet.MIN_BAND_RETURNS or (equity <= 0).any() or np.ptp(equity) == 0:
        return None
    return records.Band.model_validate({"level": tearsheet.BAND_LEVEL, **tearsheet.equity_band(equity, seed)})


def _rolling_sharpe_range(result: BacktestResult) -> records.RollingSharpe:
    """Window, last, lowest and highest rolling Sharpe ratio; None where no window is complete."""
    ratios = tearsheet.rolling_sharpe(result.equity, result.risk_free, periods=bars_per_year(result.times))
    finite = ratios[np.isfinite(ratios)].tolist()
    last = finite[-1] if finite else None
    return records.RollingSharpe(
        window=tearsheet.ROLLING_BARS, last=last, low=min(finite, default=None), high=max(finite, default=None)
    )


def yearly_returns(times: Times, equity: Floats) -> dict[str, float]:
    """Simple return by calendar year, from the last equity of the year before (first year: from the first equity).

    times: [T]; equity: [T] currency.
    """
    years = times.astype("datetime64[Y]").astype(int) + 1970
    lasts = np.append(np.flatnonzero(np.diff(years)), len(years) - 1)
    values = np.concatenate([equity[:1], equity[lasts]])
    with np.errstate(divide="ignore", invalid="ignore"):
        returns = values[1:] / values[:-1] - 1
    return {str(years[i]): float(value) for i, value in zip(lasts, returns, strict=True)}


# ---- the accounts behind a report as arrays, from which pages draw its charts again ------------------------------
# The file is not compressed, so that its size bounds the memory it needs.


def write_curves(out: Path, results: Mapping[str, BacktestResult]) -> Path:
    """Write the results that share the bars of the subject of the report. Raises RunError if the file cannot be
    written.

    Equity, turnover, costs and cash rates of every strategy; weights and costs by kind of the subject alone.
    """
    from safetensors.numpy import save

    subject = subject_of(results)
    times = results[subject].times
    shared_results = {name: result for name, result in results.items() if np.array_equal(result.times, times)}
    arrays: dict[str, NDArray[Any]] = {"times": times.astype(_SECONDS).astype(np.int64)}
    for i, (name, result) in enumerate(shared_results.items()):
        arrays[f"{i}.equity"] = result.equity.astype(np.float64)
        arrays[f"{i}.turnover"] = result.turnover.astype(np.float32)
        arrays[f"{i}.costs"] = result.costs.astype(np.float64)
        if result.risk_free is not None:
            arrays[f"{i}.risk_free"] = result.risk_free.astype(np.float64)
        if name == subject:
            arrays["weights"] = result.weights.astype(np.float32)
            for kind, values in enumerate(result.cost_parts.values()):
                arrays[f"cost_parts.{kind}"] = values.astype(np.float64)
    header = {
        "names": list(shared_results),
        "subject": subject,
        "symbols": list(results[subject].symbols),
        "cost_parts": list(results[subject].cost_parts),
        "metrics": {name: dict(result.metrics) for name, result in shared_results.items()},
    }
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"curves": json.dumps(header)})
    return write_bytes(out / CURVES_FILE, data)


def parse_curves(data: bytes) -> dict[str, BacktestResult]:
    """The results in the contents of a file. Raises RunError if they are damaged."""
    try:
        return _parse_arrays(data)
    except Exception as error:  # noqa: BLE001 - a file may hold anything
        raise RunError(f"{CURVES_FILE} is damaged ({type(error).__name__}); evaluate the run again") from None


def _parse_arrays(data: bytes) -> dict[str, BacktestResult]:
    from safetensors.numpy import load

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    contents = json.loads(header["__metadata__"]["curves"])
    arrays = load(data)
    times = arrays["times"].astype(_SECONDS)
    bars = len(times)
    symbols = tuple(map(str, contents["symbols"]))
    results = {}
    for i, name in enumerate(contents["names"]):
        is_subject = name == contents["subject"]
        weights = arrays["weights"].astype(np.float64) if is_subject else np.zeros((bars, 0))
        costs = (
            {str(kind): arrays[f"cost_parts.{i}"] for i, kind in enumerate(contents["cost_parts"])}
            if is_subject
            else {}
        )
        result = BacktestResult(
            name=str(name),
            times=times,
            symbols=symbols if is_subject else (),
            equity=arrays[f"{i}.equity"],
            weights=weights,
            turnover=arrays[f"{i}.turnover"].astype(np.float64),
            costs=arrays[f"{i}.costs"],
            metrics={str(key): float(value) for key, value in contents["metrics"][name].items()},
            cost_parts=costs,
            risk_free=arrays.get(f"{i}.risk_free"),
        )
        lengths = {len(array) for array in (result.equity, result.weights, result.turnover, result.costs)}
        if lengths != {bars} or result.weights.shape[1] != len(result.symbols):
            raise ValueError("lengths differ")
        results[result.name] = result
    return results
