"""Training on environments without a market, Gymnasium's or users' own: config, run folder, loop, evaluation."""
