"""The manager's own authority: what it signs is good for one purpose and one node."""

import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from varuna_manager.security.authority import Authority, key_sha256, node_of, requested_key
from varuna_runtime.agent.credentials import new_key, request_for
from varuna_runtime.spec.errors import Conflict, InvalidInput

NOW_S = 1_800_000_000.0


def authority(folder: Path) -> Authority:
    return Authority.at(folder, NOW_S)


def loaded(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def verified(made_by: Authority, pem: str, at_s: float) -> tuple[x509.GeneralName, ...]:
    """The names in a client's certificate, if that authority vouches for it at that time."""
    at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    verifier = PolicyBuilder().store(Store([loaded(made_by.ca_pem)])).time(at).build_client_verifier()
    return tuple(verifier.verify(loaded(pem), []).subjects or ())


def test_it_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    made = authority(tmp_path)
    assert Authority.at(tmp_path, NOW_S + 9e6).ca_pem == made.ca_pem
    assert stat.S_IMODE((tmp_path / "authority.pem").stat().st_mode) == 0o600
    assert "PRIVATE" not in made.ca_pem


def test_a_damaged_one_is_never_replaced_silently(tmp_path: Path) -> None:
    authority(tmp_path)
    (tmp_path / "authority.pem").write_text("-----BEGIN")
    with pytest.raises(Conflict, match="restore it from a backup"):
        authority(tmp_path)


def test_a_certificate_names_its_node_for_its_life(tmp_path: Path) -> None:
    made = authority(tmp_path)
    issued = made.issue(request_for(new_key()), "pool/ü_0", NOW_S, 3600.0)
    (name,) = verified(made, issued.certificate_pem, NOW_S + 3599)
    assert node_of((("DNS", "x"), ("URI", name.value))) == "pool/ü_0"
    assert issued.expires_at_s == NOW_S + 3600
    with pytest.raises(VerificationError):
        verified(made, issued.certificate_pem, NOW_S + 3601)


def test_a_certificate_of_another_authority_is_none_of_ours(tmp_path: Path) -> None:
    issued = authority(tmp_path / "b").issue(request_for(new_key()), "n", NOW_S, 3600.0)
    with pytest.raises(VerificationError):
        verified(authority(tmp_path / "a"), issued.certificate_pem, NOW_S)


def test_no_node_can_play_the_manager_nor_the_manager_a_node(tmp_path: Path) -> None:
    made = authority(tmp_path)
    for pem, purpose in (
        (
            made.issue(request_for(new_key()), "n", NOW_S, 60.0).certificate_pem,
            ExtendedKeyUsageOID.CLIENT_AUTH,
        ),
        (made.server_pem(NOW_S), ExtendedKeyUsageOID.SERVER_AUTH),
    ):
        usage = loaded(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]
        assert not loaded(pem).extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_what_a_request_claims_to_be_is_ignored(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    uri = x509.UniformResourceIdentifier("urn:varuna:node:other")
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    made = authority(tmp_path)
    (name,) = verified(made, made.issue(request, "mine", NOW_S, 60.0).certificate_pem, NOW_S)
    assert name.value == "urn:varuna:node:mine"


def test_only_a_sound_request_over_the_wanted_kind_of_key_is_signed() -> None:
    good = request_for(new_key())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    pem = serialization.Encoding.PEM
    other_kind = builder.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256()).public_bytes(pem)
    other_curve = builder.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()).public_bytes(pem)
    der = bytearray(x509.load_pem_x509_csr(good).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1  # of the signature
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(pem)
    for bad in (b"", b"junk", good[:100], b"x" * 9000, other_kind, other_curve, forged):
        with pytest.raises(InvalidInput, match="P-256"):
            requested_key(bad)
    key = new_key()
    assert key_sha256(requested_key(request_for(key))) == key_sha256(requested_key(request_for(key)))
    assert key_sha256(requested_key(request_for(key))) != key_sha256(requested_key(good))


@pytest.mark.parametrize("names", [None, (), (("DNS", "urn:varuna:node:n"),), (("URI", "urn:varuna:node:"),)])
def test_a_certificate_without_a_node_names_none(names: object) -> None:
    assert node_of(names) == ""
