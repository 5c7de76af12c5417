"""Training on environments without a market, of Gymnasium or from files: config, run folder, loop, evaluation."""
