"""What proves that this machine is its node, kept in one file that only its owner can read."""

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput

T = TypeVar("T")

# cryptography is imported where a key is made: an agent on loopback needs none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A key and its certificate. Times are Unix seconds by this machine's clock."""

    node: str
    manager: str  # HOST:PORT
    ca_pem: str
    certificate_pem: str
    key_pem: str = field(repr=False)
    ticket: str  # id of the one that was spent
    renew_at_s: float
    expires_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """The key for which a ticket may have been spent already, though no answer was seen."""

    ticket: str
    key_pem: str = field(repr=False)


class Wallet:
    """The folder `identity` of the agent's home; what it writes is durable when the call returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "credentials.json"
        self._pending = folder / "pending.json"

    @property
    def path(self) -> Path:
        """Where the credentials are."""
        return self._path

    def credentials(self) -> Credentials | None:
        """Return what is kept; InvalidInput when it cannot be read."""
        return _read(Credentials, self._path)

    def keep(self, credentials: Credentials) -> None:
        """Keep these in the place of older ones."""
        _replace(self._path, canonical.dumps(credentials))
        self._pending.unlink(missing_ok=True)

    def key_for(self, ticket: str) -> str:
        """Return the key to spend a ticket on: the same one however often it is asked for."""
        found = _read(_Pending, self._pending)
        if found is None or found.ticket != ticket:
            found = _Pending(ticket=ticket, key_pem=new_key())
            _replace(self._pending, canonical.dumps(found))
        return found.key_pem


def new_key() -> str:
    """Return a fresh private key as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, form, bare).decode()


def request_for(key_pem: str) -> bytes:
    """Return a certificate request over the key; the manager decides what name goes into the answer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return canonical.loads(kind, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, InvalidInput):
        raise InvalidInput(
            f"{path}: cannot be read or is damaged; remove it and start with --join and a new join ticket"
        ) from None  # the cause may show a key


def _replace(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
