"""Keeps the pools at what the jobs need: reads every provider, decides with `sizing`, writes, reports."""
