"""The campaign of faults: what is done to a pool, what must hold afterwards, and what is said of it."""
