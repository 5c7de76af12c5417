"""The audit: checks for look-ahead, leakage, warm-up, fills, data quality, cost sensitivity and determinism."""
