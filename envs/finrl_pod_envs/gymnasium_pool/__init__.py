"""Gymnasium environments, stepped in this process or by a pool of workers, as one batched environment."""
