"""Train on bars of one minute: one decision a session, at most twelve times the account a year in trades."""

import numpy as np
import pandas as pd

import finrl_pod as fp

SESSION = 390  # minutes from 9:30 to 16:00 in New York
SYMBOLS = ("AAPL", "KO", "XOM")

# Replace this by your file: times with a zone, such as 2024-03-04T14:30:00Z.
rng = np.random.default_rng(2)
opens = pd.bdate_range("2024-03-04", periods=30).tz_localize("America/New_York") + pd.Timedelta(hours=9, minutes=30)
times = pd.DatetimeIndex([start + pd.Timedelta(minutes=i) for start in opens for i in range(SESSION)]).tz_convert("UTC")
closes = 50 * np.exp(rng.normal(0, 2e-4, (len(times), len(SYMBOLS))).cumsum(0))
pd.DataFrame(closes, times.rename("time"), SYMBOLS).to_csv("minutes.csv")

prices = fp.load_prices("minutes.csv", bar="1m")
settings = {"agent.algorithm": "closed_form", "environment.window": 5 * SESSION}
market = fp.make_market(prices, "minutes", settings=settings)
agent = fp.train(market, progress=False)
result = fp.backtest(agent, market)
print(f"{len(prices.times):,} bars, turnover {result.metrics['turnover']:.1f} a year")
print(result.trades.head())
