"""Benchmark of backtests: many variations of daily target weights at once, compared with vectorbt and bt.

The other libraries run in a separate virtual environment, if it exists:

    python -m venv /tmp/peer-backtests && /tmp/peer-backtests/bin/pip install vectorbt bt
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.options import check_minimum
from benchmarks.harness.rows import CPU, FOLDER, Row, log_progress, measure_rates, median_row, single_row
from benchmarks.speed.speed_env import CASH, COST_BPS, SpeedSettings, make_market
from finrl_pod.errors import SetupError
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.evaluate.variations import Job, RecordedBacktest, kernel_for, simulate_recorded
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import MarketTensor, Tensor

PEER = Path(tempfile.gettempdir()) / "peer-backtests" / "bin" / "python"
PEER_VARIATIONS = 50  # per call; more at once is not faster
TORCH_VARIATIONS = 100
DIRICHLET_CONCENTRATION = 3.0  # of the distribution of weights
INVESTED_FRACTION = 0.99  # of equity; costs are paid from the rest, so that no purchase is scaled down
SECONDS = 900
DIFFERENCE = (
    "vectorbt sizes orders the same way; bt deducts the fee of a purchase from the amount invested, so it ends "
    "slightly below its target weights"
)


@dataclass(frozen=True)
class BacktestSettings:
    """Settings of `backtest`.

    peer: Python interpreter of an environment with vectorbt and bt; "" uses the default location if it exists.
    """

    variations: int = 1000
    assets: int = 30
    days: int = 2500
    runs: int = 5
    peer: str = ""


def backtest_rows(settings: BacktestSettings) -> list[Row]:
    """Measure the time of all variations and the rates of the kernel and of plain torch.

    If vectorbt and bt are installed: also their rates, the ratio, and the relative difference of final wealth.
    Raises SetupError if --peer cannot be run.
    """
    check_minimum(settings, variations=1, assets=1, days=3, runs=1)
    market = make_market(SpeedSettings(assets=settings.assets, days=settings.days, features=0), "same_close")
    log_progress(f"drawing weights: {settings.variations} x {settings.days} x {settings.assets}")
    weights = draw_weights(settings.variations, settings.days, settings.assets)
    rules = ExecutionRules(COST_BPS / 1e4)
    config = {
        **asdict(settings),
        "cost_bps": COST_BPS,
        "fill": market.fill_rule,
        "weights": str(weights.dtype).removeprefix("torch."),
        "native": kernel_for(market) is not None,
    }
    subset = weights[:TORCH_VARIATIONS]
    torch_rates = measure_rates("torch", lambda: _run_torch(market, subset, rules), settings.runs, CPU)
    rates = measure_rates("backtest", lambda: len(_run(market, weights, rules).equity), settings.runs, CPU)
    rows = [
        median_row("backtest_variations", [1e3 * settings.variations / rate for rate in rates], "ms", config),
        median_row("backtest_rate", rates, "backtests/s", config),
        median_row("backtest_rate_torch", torch_rates, "backtests/s", {**config, "variations": len(subset)}),
    ]
    if not settings.peer and not PEER.exists():
        log_progress("vectorbt and bt are not installed; skipping them")
        return rows
    return [*rows, *_peer_rows(settings.peer or str(PEER), market, weights, settings.runs, rates, config)]


def draw_weights(variations: int, days: int, assets: int, seed: int = 0) -> Tensor:
    """Draw weights [V, T, N] float64 from a Dirichlet distribution, summing to `INVESTED_FRACTION` each day."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_gamma(DIRICHLET_CONCENTRATION, (variations, days, assets))
    weights *= INVESTED_FRACTION / weights.sum(-1, keepdims=True)
    return torch.from_numpy(weights)


def _run(market: MarketTensor, weights: Tensor, rules: ExecutionRules) -> RecordedBacktest:
    last = len(market.times) - 1
    return simulate_recorded(market, weights, [Job(v, 0, last, rules) for v in range(len(weights))], CASH)


def _run_torch(market: MarketTensor, weights: Tensor, rules: ExecutionRules) -> int:
    last = len(market.times) - 1
    simulate(market, lambda t, cash, shares: weights[:, t], 0, last, rules, CASH, batch=len(weights))  # noqa: ARG005
    return len(weights)


def _peer_rows(
    peer: str, market: MarketTensor, weights: Tensor, runs: int, rates: list[float], config: dict[str, Any]
) -> list[Row]:
    log_progress("vectorbt and bt on the same market")
    peer_result = _run_peer(peer, market, weights[:PEER_VARIATIONS], runs)
    peer_config = {**config, "versions": peer_result["versions"]}
    peer_rates = peer_result["vectorbt_rates"]
    slowest = min(rates) / max(peer_rates)
    fastest = max(rates) / min(peer_rates)
    ratio = float(np.median(rates) / np.median(peer_rates))
    rate_config = {**peer_config, "variations": len(weights[:PEER_VARIATIONS])}
    ratio_config = {**peer_config, "interval": "worst and best of the runs"}
    rows = [
        median_row("vectorbt_rate", peer_rates, "backtests/s", rate_config),
        Row("times_vectorbt", ratio, slowest, fastest, "times", ratio_config),
    ]
    for kind, rate in (("free", 0.0), ("costs", COST_BPS / 1e4)):
        own_wealth = float(_run(market, weights[:1], ExecutionRules(rate)).equity[0, -1]) / CASH
        explanation = {} if kind == "free" else {"difference": DIFFERENCE}
        for name in ("vectorbt", "bt"):
            gap = abs(own_wealth / peer_result[f"{name}_{kind}"] - 1)
            details = {**peer_config, "ours": own_wealth, "theirs": peer_result[f"{name}_{kind}"], **explanation}
            rows.append(single_row(f"wealth_{kind}_{name}", gap, "relative", **details))
    return rows


def _run_peer(peer: str, market: MarketTensor, weights: Tensor, runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case.npz"
        decisions = weights.numpy().copy()
        decisions[:, -1] = np.nan  # no decision at the last bar
        cost = COST_BPS / 1e4
        np.savez(case, prices=market.close.numpy(), weights=decisions, cost=cost, cash=CASH, runs=runs)
        script = FOLDER / "peers" / "library_backtests.py"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            process = subprocess.run(
                [peer, str(script), str(case)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                env=environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"--peer {peer} cannot be run: {error}") from None
    if process.returncode:
        message = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SetupError(f"--peer {peer} failed: {message}; install vectorbt and bt there, or choose another")
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result
