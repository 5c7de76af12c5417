"""Vectorised trading environments."""
