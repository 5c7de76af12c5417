"""Strategies: baselines and trained policies."""
