"""Alpaca as broker and data feed, through either of its client libraries."""
