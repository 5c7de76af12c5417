"""Pods, leaderboard, tournament, runs on disk."""
