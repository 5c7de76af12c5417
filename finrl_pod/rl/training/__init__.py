"""Workers, learners and what they share: optimisers, normalisation, the pipeline."""
