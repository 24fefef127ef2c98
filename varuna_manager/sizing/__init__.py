"""How many nodes each pool should have, and which to end: pure judgement over fresh readings."""
