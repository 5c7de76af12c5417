"""What the paper-trading commands do, as functions."""
