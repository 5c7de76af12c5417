"""Benchmark of backtests: many variations of daily target weights at once, compared with vectorbt and bt.

The other libraries run in a separate virtual environment, if it exists:

    python -m venv /tmp/peer-backtests && /tmp/peer-backtests/bin/pip install vectorbt bt
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.results import FOLDER
from benchmarks.harness.rows import Row, median_row
from benchmarks.learning.training import log_progress
from benchmarks.speed.speed_env import CASH, COST_BPS, SpeedSettings, make_market
from finrl_pod.errors import ConfigError, SetupError
from finrl_pod.evaluate.simulate import simulate
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
    """Flags of `python -m benchmarks backtest`.

    peer: Python interpreter of an environment with vectorbt and bt; "" uses the default location if it exists.
    """

    variations: int = 1000
    assets: int = 30
    days: int = 2500
    runs: int = 5
    peer: str = ""

    def check(self) -> None:
        """Raise ConfigError for a setting out of range."""
        for name, minimum in (("variations", 1), ("assets", 1), ("days", 3), ("runs", 1)):
            if getattr(self, name) < minimum:
                raise ConfigError(f"--{name} must be at least {minimum}, got {getattr(self, name)}")


def backtest_rows(settings: BacktestSettings) -> list[Row]:
    """Measure the time of all variations and the rates of the kernel and of plain torch.

    If vectorbt and bt are installed: also their rates, the ratio, and the relative difference of final wealth.
    Raises SetupError if --peer cannot be run.
    """
    settings.check()
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
    seconds = _seconds(market, weights, rules, settings.runs)
    some = weights[:TORCH_VARIATIONS]
    plain = _torch_seconds(market, some, rules)
    rates = [settings.variations / s for s in seconds]
    rows = [
        median_row("backtest_variations", [1e3 * s for s in seconds], "ms", config),
        median_row("backtest_rate", rates, "backtests/s", config),
        median_row("backtest_rate_torch", [len(some) / plain], "backtests/s", {**config, "variations": len(some)}),
    ]
    found = _peer_interpreter(settings.peer)
    if found is None:
        log_progress("vectorbt and bt are not installed; skipping them")
        return rows
    return [*rows, *_peer_rows(found, market, weights, settings.runs, rates, config)]


def draw_weights(variations: int, days: int, assets: int, seed: int = 0) -> Tensor:
    """Draw weights [V, T, N] float64 from a Dirichlet distribution, summing to `INVESTED_FRACTION` each day."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_gamma(DIRICHLET_CONCENTRATION, (variations, days, assets))
    weights *= INVESTED_FRACTION / weights.sum(-1, keepdims=True)
    return torch.from_numpy(weights)


def _run(market: MarketTensor, weights: Tensor, rules: ExecutionRules) -> RecordedBacktest:
    last = len(market.times) - 1
    return simulate_recorded(market, weights, [Job(v, 0, last, rules) for v in range(len(weights))], CASH)


def _seconds(market: MarketTensor, weights: Tensor, rules: ExecutionRules, runs: int) -> list[float]:
    measured = []
    for run in range(runs + 1):
        began = time.perf_counter()
        _run(market, weights, rules)
        measured.append(time.perf_counter() - began)
        log_progress(f"backtest: {'warm-up' if run == 0 else f'run {run} of {runs}'}, {1e3 * measured[-1]:,.1f} ms")
    return measured[1:]


def _torch_seconds(market: MarketTensor, weights: Tensor, rules: ExecutionRules) -> float:
    began = time.perf_counter()
    last = len(market.times) - 1
    simulate(market, lambda t, cash, shares: weights[:, t], 0, last, rules, CASH, batch=len(weights))  # noqa: ARG005
    return time.perf_counter() - began


def _peer_rows(
    peer: str,
    market: MarketTensor,
    weights: Tensor,
    runs: int,
    rates: list[float],
    config: dict[str, Any],
) -> list[Row]:
    log_progress("vectorbt and bt on the same market")
    theirs = _run_peer(peer, market, weights[:PEER_VARIATIONS], runs)
    about = {**config, "versions": theirs["versions"]}
    peer_rates = theirs["vectorbt_rates"]
    slowest, fastest = min(rates) / max(peer_rates), max(rates) / min(peer_rates)
    ratio = float(np.median(rates) / np.median(peer_rates))
    rows = [
        median_row("vectorbt_rate", peer_rates, "backtests/s", {**about, "variations": len(weights[:PEER_VARIATIONS])}),
        Row("times_vectorbt", ratio, slowest, fastest, "times", {**about, "interval": "worst and best of the runs"}),
    ]
    for kind, rate in (("free", 0.0), ("costs", COST_BPS / 1e4)):
        own = float(_run(market, weights[:1], ExecutionRules(rate)).equity[0, -1]) / CASH
        why = {} if kind == "free" else {"difference": DIFFERENCE}
        for name in ("vectorbt", "bt"):
            gap = abs(own / theirs[f"{name}_{kind}"] - 1)
            details = {**about, "ours": own, "theirs": theirs[f"{name}_{kind}"], **why}
            rows.append(Row(f"wealth_{kind}_{name}", gap, gap, gap, "relative", details))
    return rows


def _peer_interpreter(given: str) -> str | None:
    if given:
        return given
    return str(PEER) if PEER.exists() else None


def _run_peer(peer: str, market: MarketTensor, weights: Tensor, runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case.npz"
        decided = weights.numpy().copy()
        decided[:, -1] = np.nan  # no decision at the last bar
        cost = COST_BPS / 1e4
        np.savez(case, prices=market.close.numpy(), weights=decided, cost=cost, cash=CASH, runs=runs)
        script = FOLDER / "peers" / "library_backtests.py"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            done = subprocess.run(
                [peer, str(script), str(case)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                env=environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"--peer {peer} cannot be run: {error}") from None
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SetupError(f"--peer {peer} failed: {message}; install vectorbt and bt there, or choose another")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
