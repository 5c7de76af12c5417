"""Decisions of trained agents in accounts, and the solved linear policy."""
