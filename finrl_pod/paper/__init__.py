"""Paper trading: a daemon that trades a strategy on a paper account, and the records that it keeps."""
