"""Strategies: baselines, trained agents, schedules of strategies, and strategies from users' files."""
