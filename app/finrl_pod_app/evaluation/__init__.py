"""Backtests, audits, verdicts and their parts."""
