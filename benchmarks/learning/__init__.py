"""Learning on markets with a known optimum: leaked futures, planted signals and markets without an edge."""
