"""finrl_pod: vectorised market environments, population-batched learners, honest evaluation."""

__version__ = "0.1.0"
