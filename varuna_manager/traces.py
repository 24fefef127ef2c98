"""Recorded spot pools: text of a recording -> when nodes came and went. Reads no file."""
