"""The engine of a tournament on many shards, measured and simulated."""
