"""The memory of a node that outlives its workers: copies of their state; torch-free."""
