"""Metrics, backtests and statistics."""
