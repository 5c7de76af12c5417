"""Backtests of given weights by vectorbt and bt. Runs in a separate environment and imports nothing of this project.

python library_backtests.py CASE.npz prints one JSON object. CASE.npz: prices [T, N], weights [K, T, N] with a last row
of NaN (no decision), cost, cash, runs.
"""

import json
import logging
import sys
import time
import warnings
from importlib.metadata import version

import numpy as np
import pandas as pd


def in_vectorbt(prices: pd.DataFrame, weights: np.ndarray, cost: float, cash: float) -> np.ndarray:
    """Return final wealth [K] relative to initial cash, all variations in one call."""
    import vectorbt as vbt  # type: ignore[import-not-found]

    count, _, assets = weights.shape
    close = pd.concat([prices] * count, axis=1, keys=range(count)) if count > 1 else prices
    size = pd.DataFrame(np.concatenate(list(weights), axis=1), close.index, close.columns)
    groups = np.repeat(np.arange(count), assets) if count > 1 else True
    folio = vbt.Portfolio.from_orders(
        close,
        size=size,
        size_type="targetpercent",
        fees=cost,
        group_by=groups,
        cash_sharing=True,
        call_seq="auto",
        init_cash=cash,
        freq="1D",
    )
    return np.atleast_2d(np.asarray(folio.value()).T)[:, -1] / cash


def in_bt(prices: pd.DataFrame, weights: np.ndarray, cost: float, cash: float) -> float:
    """Return final wealth relative to initial cash."""
    import bt  # type: ignore[import-not-found]

    target = pd.DataFrame(weights[:-1], prices.index[:-1], prices.columns)
    algos = [bt.algos.RunDaily(), bt.algos.SelectAll(), bt.algos.WeighTarget(target), bt.algos.Rebalance()]
    test = bt.Backtest(
        bt.Strategy("s", algos),
        prices,
        initial_capital=cash,
        commissions=lambda quantity, price: abs(quantity) * price * cost,
        integer_positions=False,
        progress_bar=False,
    )
    test.run()
    return float(test.strategy.values.iloc[-1] / cash)


def main(path: str) -> None:
    """Measure and print the result; warnings and log lines of the libraries are suppressed."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    with np.load(path) as case:
        values, weights = case["prices"], case["weights"]
        cost, cash, runs = float(case["cost"]), float(case["cash"]), int(case["runs"])
    names = [f"S{i:02d}" for i in range(values.shape[1])]
    prices = pd.DataFrame(values, pd.bdate_range("2000-01-03", periods=len(values)), names)
    in_vectorbt(prices, weights[:1], cost, cash)  # compiles
    rates = []
    for _ in range(runs):
        began = time.perf_counter()
        in_vectorbt(prices, weights, cost, cash)
        rates.append(len(weights) / (time.perf_counter() - began))
    result = {
        "vectorbt_rates": rates,
        "vectorbt_free": float(in_vectorbt(prices, weights[:1], 0.0, cash)[0]),
        "vectorbt_costs": float(in_vectorbt(prices, weights[:1], cost, cash)[0]),
        "bt_free": in_bt(prices, weights[0], 0.0, cash),
        "bt_costs": in_bt(prices, weights[0], cost, cash),
        "versions": {name: version(name) for name in ("vectorbt", "bt")},
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
