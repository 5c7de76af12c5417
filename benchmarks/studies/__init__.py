"""Studies over many seeds, with Stable-Baselines3 as the reference."""
