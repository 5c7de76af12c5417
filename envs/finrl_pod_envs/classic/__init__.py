"""Gymnasium's environments, stepped in this process or by a pool of worker processes, as one batched environment."""
