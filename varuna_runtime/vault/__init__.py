"""The memory of a node that outlives its workers: copies of their state, and who may fetch them; torch-free."""
