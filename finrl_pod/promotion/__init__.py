"""Promotion of champions: the gate and its rules, the verdict, and the registry of trials and looks."""
