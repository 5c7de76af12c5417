"""The tournament: pods, leaderboard, next generation, snapshots, runs on disk."""
