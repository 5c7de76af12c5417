"""Train on prices of your own and test the agent on bars that it has not seen."""

import numpy as np
import pandas as pd

import finrl_pod as fp

# Replace this by your file: one row for each day and symbol, or a folder with one file for each symbol.
rng = np.random.default_rng(1)
days = pd.bdate_range("2014-01-02", periods=2000)
closes = 50 * np.exp(rng.normal(3e-4, 0.01, (len(days), 4)).cumsum(0))
frame = pd.DataFrame(closes, days.rename("date"), ["AAPL", "KO", "PG", "XOM"])
frame.to_csv("prices.csv")

prices = fp.load_prices("prices.csv", name="mine")
market = fp.make_market(prices, settings={"agent.algorithm": "closed_form"})
agent = fp.train(market, progress=False)
agent.save("agents/mine")

result = fp.backtest(fp.load_agent("agents/mine"), market)  # on validation bars
print(result)  # beside equal weights, with the difference and its interval
