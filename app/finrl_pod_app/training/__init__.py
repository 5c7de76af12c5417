"""Tournaments, walk-forwards and retraining on a market, and where they run."""
