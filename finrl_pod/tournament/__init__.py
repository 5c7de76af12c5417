"""The tournament: pods, leaderboard, generator, snapshots, runs on disk."""
