"""The manager's own certificate authority; its key never leaves the home."""

import datetime
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from varuna_manager import files
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.wire.channels import SERVER_NAME

_DAY_S = 86400.0
_CA_LIFE_S = 20 * 365 * _DAY_S
SERVER_LIFE_S = 90 * _DAY_S
_BACKDATED_S = _DAY_S  # a machine whose clock is a little behind must not find the manager too young
_MAX_CSR_BYTES = 8 << 10
_NODE_URI = "urn:varuna:node:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A node's certificate."""

    certificate_pem: str
    expires_at_s: float


class Authority:
    """Signs the server's and the nodes' certificates. `now_s` is Unix time throughout."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.ca_pem = _pem(certificate)

    @classmethod
    def at(cls, folder: Path, now_s: float) -> "Authority":
        """Return the authority kept in `folder`, made at the first call. Conflict: its file is damaged."""
        path = (
            folder / "authority.pem"
        )  # key and certificate in one file, so that they always belong together
        if not path.exists():
            made = cls._new(now_s)
            files.replace(path, _key_pem(made._key) + made.ca_pem)
        try:
            text = path.read_bytes()
            key = serialization.load_pem_private_key(text, None)
            certificate = x509.load_pem_x509_certificate(text)
        except (ValueError, TypeError) as err:
            raise Conflict(
                f"{path} is damaged: restore it from a backup, or remove it: then every node and user "
                "needs a new ticket or token"
            ) from err
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(certificate, key)

    @classmethod
    def _new(cls, now_s: float) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("varuna manager CA")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, name, key.public_key(), now_s, _CA_LIFE_S)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    def server_pem(self, now_s: float, life_s: float = SERVER_LIFE_S) -> str:
        """Return a fresh key and certificate for the listener, as one PEM text."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(
            key.public_key(), x509.DNSName(SERVER_NAME), ExtendedKeyUsageOID.SERVER_AUTH, now_s, life_s
        )
        return _key_pem(key) + _pem(certificate)

    def issue(self, csr_pem: bytes, node: str, now_s: float, life_s: float) -> Issued:
        """Return a certificate for `node` over the request's key; what else the request says is ignored.

        It is good for clients only, so no node can play the manager. InvalidInput: not a sound request.
        """
        name = x509.UniformResourceIdentifier(_NODE_URI + quote(node, safe=""))
        key = requested_key(csr_pem)
        signed = self._signed(key, name, ExtendedKeyUsageOID.CLIENT_AUTH, now_s, life_s)
        return Issued(certificate_pem=_pem(signed), expires_at_s=signed.not_valid_after_utc.timestamp())

    def _signed(
        self,
        key: ec.EllipticCurvePublicKey,
        name: x509.GeneralName,
        purpose: x509.ObjectIdentifier,
        now_s: float,
        life_s: float,
    ) -> x509.Certificate:
        identifier = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        return (
            _builder(_name("varuna"), self._certificate.subject, key, now_s, life_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def requested_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate request whose signature proves that the sender has its half."""
    wanted = "certificate request: wanted one in PEM over an EC key on P-256"
    if len(csr_pem) > _MAX_CSR_BYTES:
        raise InvalidInput(f"{wanted}, seen {len(csr_pem)} bytes")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as err:
        raise InvalidInput(f"{wanted}, seen something else") from err
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput(f"{wanted}, seen another kind of key")
    if not is_signed:
        raise InvalidInput(f"{wanted}, seen one whose signature is wrong")
    return key


def key_sha256(key: ec.EllipticCurvePublicKey) -> str:
    """Return what tells one public key from another."""
    digest = hashes.Hash(hashes.SHA256())
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    digest.update(key.public_bytes(encoding, form))
    return digest.finalize().hex()


def issued_at_s(not_before: str) -> float:
    """Return when a certificate of ours was made, in whole seconds, by its `notBefore` as ssl tells it."""
    return ssl.cert_time_to_seconds(not_before) + _BACKDATED_S


def node_of(names: object) -> str:
    """Return the node in the `subjectAltName` of a verified peer certificate; empty if it names none."""
    for pair in names if isinstance(names, tuple) else ():
        if found := re.fullmatch(re.escape(_NODE_URI) + "(.+)", str(pair[1]) if pair[0] == "URI" else ""):
            return unquote(found[1])
    return ""


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_s: float, life_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_date(now_s - _BACKDATED_S))
        .not_valid_after(_date(now_s + life_s))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _date(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, bare).decode()
