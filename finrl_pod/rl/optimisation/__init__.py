"""Optimisers, normalisation and the training state of members."""
