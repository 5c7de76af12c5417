"""Policies, critics and what they are made of, batched over a population."""
