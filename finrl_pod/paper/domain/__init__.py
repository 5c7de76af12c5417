"""Records and rules of paper trading that every other package uses; it imports none of them."""
