"""Planted faults and honest look-alikes, one a file; `test_planted.py` audits each.

A plant has EXPECTED, the check that must fail and a word of its part or message (None: nothing fails), and any
of FEATURES (name -> function of a panel), PANEL (prices) and `plant(pipeline)`, which returns the changed pipeline.
"""
