"""Interfaces of other simulators: theirs as a VecEnv (`adapters`, `isaac_gym`), ours for their trainers (`exports`)."""
