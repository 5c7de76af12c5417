"""Networks and learners, batched over a population."""
