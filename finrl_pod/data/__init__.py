"""Market data: sources, the panel store, features, splits and market tensors."""
