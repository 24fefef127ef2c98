"""Files of text that a command reads and writes; a mistake names the file and what it was for."""

from pathlib import Path

from varuna_runtime.spec.errors import InvalidInput


def text_of(path: Path, what: str) -> str:
    """Return the text of a file; InvalidInput says why it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        reason = "not UTF-8" if isinstance(err, UnicodeDecodeError) else (err.strerror or str(err)).lower()
        raise InvalidInput(f"{path}: the {what} cannot be read: {reason}") from err


def write_text(path: Path, what: str, text: str) -> None:
    """Write a file; InvalidInput says why that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        reason = (err.strerror or str(err)).lower()
        raise InvalidInput(f"{path}: the {what} cannot be written: {reason}") from err
