"""Alpaca as a broker and price feed, through either of its client libraries."""
