"""Training and judging agents in markets with many agents: recipes, exact scores, and the training command."""
