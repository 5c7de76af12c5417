"""Market accounting: execution, costs, frictions, order sizing and target weights."""
