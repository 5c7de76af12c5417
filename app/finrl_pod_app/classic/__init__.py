"""Training on Gymnasium's environments: settings, the run's folder, the loop, the result."""
