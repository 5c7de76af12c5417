"""Markets with many agents against the exact optimum of the simulated game."""
