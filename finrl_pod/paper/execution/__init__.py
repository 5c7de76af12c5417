"""From a decision to filled orders: prices, target weights, risk limits, orders, reconciliation."""
