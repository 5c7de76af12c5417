"""Rollouts of on-policy and replay buffers of off-policy algorithms."""
