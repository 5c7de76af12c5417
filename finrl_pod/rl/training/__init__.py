"""Learners of whole populations, the asynchronous pipeline, and captured training graphs."""
