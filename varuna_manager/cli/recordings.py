"""Recordings of pools as files."""

from pathlib import Path

from varuna_manager import traces
from varuna_manager.traces import Recording
from varuna_runtime.spec.errors import InvalidInput


def read_recording(path: Path) -> Recording:
    """Return the recording in a file of either format; InvalidInput names the file and the line."""
    return traces.parse(text_of(path, "recording"), source=str(path))


def text_of(path: Path, what: str) -> str:
    """Return the text of a file; InvalidInput says why it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        reason = "not UTF-8" if isinstance(err, UnicodeDecodeError) else (err.strerror or str(err)).lower()
        raise InvalidInput(f"{path}: the {what} cannot be read: {reason}") from err
