"""Sources, panels, features, splits, the store."""
