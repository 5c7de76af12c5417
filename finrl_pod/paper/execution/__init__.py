"""From a decision to filled orders: planning, risk limits, order states, reconciliation."""
