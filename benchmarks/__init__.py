"""Measurements side by side with peers; they print ratios, and no absolute time is ever a pass mark."""
