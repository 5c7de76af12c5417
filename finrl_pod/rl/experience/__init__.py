"""Rollouts, replay buffers, and the collector that fills them."""
