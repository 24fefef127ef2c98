"""Recordings of pools as files."""

from pathlib import Path

from varuna_manager import traces
from varuna_manager.cli.text_files import text_of
from varuna_manager.traces import Recording


def read_recording(path: Path) -> Recording:
    """Return the recording in a file of either format; InvalidInput names the file and the line."""
    return traces.parse(text_of(path, "recording"), source=str(path))
