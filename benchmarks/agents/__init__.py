"""The study of agents beside their base portfolio, and the error rates of the promotion gate."""
