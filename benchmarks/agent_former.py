"""The default of commit a4244c5f in the cells of agents-protocol-1.md. Runs with that commit's packages only.

Call it in a checkout of that commit, with its folders on PYTHONPATH: it needs that commit's benchmarks/agent_cells.py.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
sys.path.append(str(Path(__file__).parent))
sys.path.insert(0, str(Path.cwd() / "benchmarks"))

import agent_cells as former
import agent_statistics as statistics
import numpy as np
import results_file
from finrl_pod_app.services.prices import load_panel
from finrl_pod_app.services.training_setup import make_market
from finrl_pod_strategies.mandate_account import BasePortfolio

from finrl_pod.evaluate.active_management import active_share
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import Panel

PROTOCOL = "agents-protocol-1.md"
ROWS, RETURNS = statistics.HERE / "agents.jsonl", statistics.HERE / ".agents"
UNIVERSES, SIZE, STOCKS = 10, 30, 74


def cells() -> Iterator[tuple[str, str, int | None, int]]:
    """Market, fold, sub-universe (None: all stocks) and seed of each training."""
    for seed in range(3):
        for market, folds in former.FOLDS.items():
            yield from ((market, fold, None, seed) for fold in folds)
    for universe in range(UNIVERSES):
        yield from (("us74", fold, universe, 0) for fold in former.FOLDS["us74"])


def conditions(config: RunConfig, panel: Panel) -> Iterator[tuple[str, RunConfig, Panel]]:
    """Name, config and prices of each condition of the test."""
    yield "as they are", config, panel
    costly = dataclasses.replace(config.environment, cost_bps=2 * config.environment.cost_bps)
    spread = None if panel.spread is None else 2 * panel.spread
    yield "doubled costs", dataclasses.replace(config, environment=costly), dataclasses.replace(panel, spread=spread)
    late = dataclasses.replace(config.environment, delay=2)
    yield "one more bar of delay", dataclasses.replace(config, environment=late), panel


def measure(market: str, fold: str, universe: int | None, seed: int) -> list[dict[str, Any]]:
    """Rows of one training."""
    began = time.perf_counter()
    config = former.config_of("default", former.Cell(market, fold, seed))
    if universe is not None:
        rng = np.random.default_rng(43)
        drawn = [sorted(rng.choice(STOCKS, SIZE, replace=False)) for _ in range(UNIVERSES)][universe]
        names = load_panel(config).symbols
        config = dataclasses.replace(
            config, data=dataclasses.replace(config.data, symbols=tuple(names[i] for i in drawn))
        )
    panel = load_panel(config)
    trained = former.train_agent(config, panel)
    rows = []
    for condition, changed, prices in conditions(config, panel):
        terms = (trained.splits.test.first, trained.splits.test.last, rules_of(changed.environment))
        tested = make_market(prices, changed, trained.splits)
        own, base = (
            backtest(x, prices, tested, *terms, changed.environment.cash)
            for x in (trained.champion, BasePortfolio(config.mandate, config.environment.leverage))
        )
        pair = simple_returns(own.equity), simple_returns(base.equity)
        settings = {
            "agent": "former default", "market": market, "fold": fold, "universe": universe, "seed": seed,
            "condition": condition, "commit": "a4244c5f", "protocol": statistics.protocol(PROTOCOL),
        }  # fmt: skip
        name = "_".join(str(settings[k]) for k in ("agent", "market", "fold", "universe", "seed", "condition"))
        RETURNS.mkdir(exist_ok=True)
        np.savez(RETURNS / f"{name.replace(' ', '-')}.npz", own=pair[0], base=pair[1])
        result = statistics.pooled({f"{market}/{fold}": [pair]})
        numbers = {measure: value[0] for measure, value in result.items()} | {
            "active_share": float(np.nanmean(active_share(own.weights[63:], base.weights[63:]))),
            "turnover": own.metrics["turnover"] / 2,
            "drawdown": own.metrics["max_drawdown"],
            "base_drawdown": base.metrics["max_drawdown"],
            "base_sharpe": base.metrics["sharpe"],
            "seconds": round(time.perf_counter() - began, 1),
        }
        rows.append(statistics.row("sharpe_difference", *result["sharpe_difference"], settings | numbers))
    return rows


def main() -> None:
    """Append the rows that are missing."""
    keys = ("market", "fold", "universe", "seed")
    present = {
        tuple(row["config"].get(key) for key in keys)
        for row in results_file.read(ROWS)
        if row["config"].get("agent") == "former default"
    }
    for cell in cells():
        if cell not in present:
            rows = measure(*cell)
            for row in rows:
                results_file.append(ROWS, row)
            sys.stderr.write(f"{cell}: {rows[0]['value']:+.4f} in {rows[0]['config']['seconds']} s\n")


if __name__ == "__main__":
    main()
