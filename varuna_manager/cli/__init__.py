"""The `varuna` command: reads arguments, calls one thing, prints. Importing it stays cheap."""

from varuna_manager.cli.root import main

__all__ = ["main"]
