"""Retrain at the end of every month on all bars until then, and trade the month that follows."""

import pandas as pd

import finrl_pod as fp

FIRST, MONTHS = "2017-01", 3
prices = fp.load_prices("sample", start="2008-01-01", end="2017-12-31")

returns = []
for month in pd.period_range(FIRST, periods=MONTHS, freq="M"):
    train_end = month.start_time - pd.DateOffset(years=1)  # the last year before the month is for validation
    settings = {
        "agent.algorithm": "closed_form",
        "splits.train": ["2008-01-01", str(train_end.date() - pd.Timedelta(days=1))],
        "splits.validation": [str(train_end.date()), str((month.start_time - pd.Timedelta(days=1)).date())],
        "splits.test": [str(month.start_time.date()), "2017-12-31"],
    }
    market = fp.make_market(prices, settings=settings)
    agent = fp.train(market, progress=False)
    result = fp.backtest(agent, market, start=str(month.start_time.date()), end=str(month.end_time.date()))
    returns.append(result.to_frame()["return"].dropna())
    print(f"{month}: {(1 + returns[-1]).prod() - 1:+.2%}")

months = pd.concat(returns)
print(f"{MONTHS} months: {(1 + months).prod() - 1:+.2%}, one standard error {months.std() * len(months) ** 0.5:.2%}")
