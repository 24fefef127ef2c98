"""Shards, manifests and their commit; torch only in `tensors`."""
