"""Interfaces of other simulators: theirs as a VecEnv (`adapters`), ours for their trainers (`exports`)."""
