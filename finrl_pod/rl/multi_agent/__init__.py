"""Learning in markets with several agents."""
