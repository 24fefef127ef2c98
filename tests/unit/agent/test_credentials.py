"""What a node keeps to prove itself: whole, private, and one key for one ticket."""

import stat
from pathlib import Path

import pytest

from varuna_runtime.agent.credentials import Credentials, Wallet
from varuna_runtime.spec.errors import InvalidInput


def made(key_pem: str = "a key") -> Credentials:
    return Credentials(
        node="n1",
        manager="10.0.0.5:7800",
        ca_pem="ca",
        certificate_pem="certificate",
        key_pem=key_pem,
        ticket="t1",
        renew_at_s=10.0,
        expires_at_s=15.0,
    )


def test_what_was_kept_is_there_at_the_next_start(tmp_path: Path) -> None:
    assert Wallet(tmp_path / "identity").credentials() is None
    Wallet(tmp_path / "identity").keep(made())
    assert Wallet(tmp_path / "identity").credentials() == made()


def test_it_is_for_its_owner_only_and_in_no_representation(tmp_path: Path) -> None:
    wallet = Wallet(tmp_path / "identity")
    wallet.keep(made())
    wallet.key_for("t2")
    for path in (tmp_path / "identity").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "identity").stat().st_mode) == 0o700
    assert "a key" not in repr(made())


def test_a_ticket_is_always_spent_on_the_same_key_also_after_a_crash(tmp_path: Path) -> None:
    key = Wallet(tmp_path).key_for("t1")
    assert Wallet(tmp_path).key_for("t1") == key
    assert Wallet(tmp_path).key_for("t2") != key


def test_once_joined_the_next_ticket_gets_a_fresh_key(tmp_path: Path) -> None:
    wallet = Wallet(tmp_path)
    key = wallet.key_for("t1")
    wallet.keep(made(key))
    assert [path.name for path in tmp_path.iterdir()] == ["credentials.json"]
    assert wallet.key_for("t1") != key


@pytest.mark.parametrize("text", [b"", b"{", b'{"key_pem": "s3cret"}', b"\xff"])
def test_a_damaged_file_is_named_and_nothing_of_it_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "credentials.json").write_bytes(text)
    with pytest.raises(
        InvalidInput, match=r"credentials\.json: .* remove it and start with --join"
    ) as refused:
        Wallet(tmp_path).credentials()
    assert "s3cret" not in str(refused.value)
