"""Secrets of jobs and of generations: on disk for their owner only, never in journal, events or logs."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from varuna_manager import files

_MIN_MASKED = 4  # shorter values would blank ordinary text


class SecretBox:
    """Secrets of every job that is not over, one file a job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, job: str, values: Mapping[str, str]) -> None:
        """Keep the secrets of a job; a job without any leaves no file."""
        if values:
            files.replace(self._path(job), json.dumps(dict(values)))

    def get(self, job: str) -> dict[str, str]:
        """Return the secrets of a job, empty when it has none."""
        try:
            found: dict[str, str] = json.loads(self._path(job).read_text())
        except FileNotFoundError:
            return {}
        return found

    def jobs(self) -> frozenset[str]:
        """Return the jobs that have secrets here."""
        return frozenset(path.stem for path in self._folder.glob("*.json"))

    def remove(self, job: str) -> None:
        """Forget the secrets of a job."""
        self._path(job).unlink(missing_ok=True)

    def masked(self, job: str, text: bytes) -> bytes:
        """Return `text` with the job's secret values starred out, byte for byte, so that offsets hold."""
        for value in sorted(self.get(job).values(), key=len, reverse=True):
            secret = value.encode()
            if len(secret) >= _MIN_MASKED:
                text = text.replace(secret, b"*" * len(secret))
        return text

    def _path(self, job: str) -> Path:
        return self._folder / f"{job}.json"


def new_suffix() -> str:
    """Return what makes a job id unlike any earlier one, also of a lost state home over the same store."""
    return secrets.token_hex(3)


def new_token_id() -> str:
    """Return an id for a ticket or token; it is no secret."""
    return secrets.token_hex(4)


def new_token_secret() -> str:
    """Return 256 random bits as text."""
    return secrets.token_urlsafe(32)


def generation_key(path: Path) -> bytes:
    """Return the key of this home, made at the first call."""
    try:
        return bytes.fromhex(path.read_text())
    except FileNotFoundError:
        files.replace(path, secrets.token_hex(32))
        return bytes.fromhex(path.read_text())


def generation_secret(key: bytes, job: str, generation: int) -> str:
    """Return the secret the ranks of a generation prove to each other; the same after a restart."""
    return hmac.new(key, f"{job}\n{generation}".encode(), hashlib.sha256).hexdigest()


def copies_secret(key: bytes, job: str) -> str:
    """Return the secret that vaults ask for before they give or take copies of the job."""
    return hmac.new(key, f"copies\n{job}\n".encode(), hashlib.sha256).hexdigest()
