"""The nouns both sides share: pure data and pure functions, no clock, randomness or I/O."""
