"""Reinforcement-learning algorithms, batched over a population."""
