"""Alpaca as a broker and price feed, by way of either of its client libraries."""
