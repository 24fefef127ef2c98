"""Providers of nodes."""
