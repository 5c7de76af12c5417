"""What to buy and sell tomorrow, for the shares and the cash of an account at any broker."""

import numpy as np
import pandas as pd

import finrl_pod as fp

# Replace this by your prices up to the last close.
rng = np.random.default_rng(3)
days = pd.bdate_range(end=pd.Timestamp.today().normalize() - pd.Timedelta(days=1), periods=2000)
closes = 50 * np.exp(rng.normal(3e-4, 0.01, (len(days), 4)).cumsum(0))
prices = fp.load_prices(pd.DataFrame(closes, days, ["AAPL", "KO", "PG", "XOM"]))

market = fp.make_market(prices, settings={"agent.algorithm": "closed_form"})
agent = fp.train(market, progress=False)
orders = fp.orders(agent, holdings={"AAPL": 40, "KO": 12}, cash=5_000.0)
orders.to_csv("orders.csv", index=False)
print(orders)
print(f"cash left at these prices: {orders.attrs['cash_left']:,.2f}")
