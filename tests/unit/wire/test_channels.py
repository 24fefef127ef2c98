"""Plain text never leaves this machine unasked."""

import asyncio
from pathlib import Path

import pytest

from varuna_manager.cli.connect import client_at
from varuna_runtime.agent.config import AgentConfig
from varuna_runtime.agent.joining import Joining
from varuna_runtime.spec.addresses import is_loopback
from varuna_runtime.spec.errors import AccessRefused
from varuna_runtime.wire.channels import refuse_plain


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.0.2", "::1", "[::1]", "localhost"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)
    refuse_plain(f"{host}:7070", "a token")


@pytest.mark.parametrize("host", ["10.0.0.5", "0.0.0.0", "[fe80::1]", "manager.example", "localhost.example"])
def test_anything_else_is_another(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(AccessRefused, match="VARUNA_INSECURE_PLAINTEXT=1"):
        refuse_plain(f"{host}:7070", "a token")


def test_a_client_without_a_token_refuses_another_machine_unless_asked_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARUNA_HOME", str(tmp_path))
    with pytest.raises(AccessRefused, match=r"varuna login.*plain text"):
        client_at("10.0.0.5:7070")
    monkeypatch.setenv("VARUNA_INSECURE_PLAINTEXT", "1")
    client_at("10.0.0.5:7070").close()


async def address_of_door(home: Path, *, insecure_plaintext: bool) -> str:
    config = AgentConfig(node="n", manager="10.0.0.5:7070", home=home, insecure_plaintext=insecure_plaintext)
    return (await Joining(config).door()).address


def test_an_agent_without_a_ticket_refuses_another_machine_unless_asked_by_name(tmp_path: Path) -> None:

    with pytest.raises(AccessRefused, match=r"--join.*plain text"):
        asyncio.run(address_of_door(tmp_path, insecure_plaintext=False))
    assert asyncio.run(address_of_door(tmp_path, insecure_plaintext=True)) == "10.0.0.5:7070"
