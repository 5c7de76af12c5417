"""Training on Gymnasium environments: config, run folder, loop, evaluation."""
