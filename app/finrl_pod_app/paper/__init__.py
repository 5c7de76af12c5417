"""The paper-trading commands as functions."""
