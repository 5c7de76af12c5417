"""Environments of users: the template, loading from a file, the check of the contract, records of episodes."""
