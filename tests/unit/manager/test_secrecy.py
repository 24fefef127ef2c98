"""Secrets stay where they belong."""

from pathlib import Path

from varuna_manager.secrecy import SecretBox, generation_key, generation_secret, new_suffix


def test_secrets_are_kept_for_their_owner_only_until_removed(tmp_path: Path) -> None:
    box = SecretBox(tmp_path / "secrets")
    box.put("j", {"TOKEN": "value"})
    assert box.get("j") == {"TOKEN": "value"}
    assert (tmp_path / "secrets" / "j.json").stat().st_mode & 0o777 == 0o600
    assert box.jobs() == {"j"}
    box.remove("j")
    assert (box.get("j"), box.jobs()) == ({}, frozenset())


def test_a_job_without_secrets_leaves_no_file(tmp_path: Path) -> None:
    box = SecretBox(tmp_path)
    box.put("j", {})
    assert list(tmp_path.iterdir()) == []


def test_masking_keeps_every_offset_and_spares_short_values(tmp_path: Path) -> None:
    box = SecretBox(tmp_path)
    box.put("j", {"A": "sécret", "B": "1"})
    text = "1 sécret 1".encode()
    assert box.masked("j", text) == b"1 " + b"*" * 7 + b" 1"
    assert box.masked("other", text) == text


def test_a_generation_secret_is_the_same_after_a_restart_and_unlike_any_other(tmp_path: Path) -> None:
    key = generation_key(tmp_path / "key")
    assert generation_key(tmp_path / "key") == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    secrets = {generation_secret(key, job, g) for job in ("a", "a1") for g in (1, 11)}
    assert len(secrets) == 4
    assert generation_secret(b"another", "a", 1) not in secrets


def test_suffixes_differ() -> None:
    assert len({new_suffix() for _ in range(20)}) == 20
