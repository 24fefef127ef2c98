"""Agents started over ssh: what reaches the host, what outlives the connection, what a silent host means."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.provider_suite import read, running, until
from tests.support.fake_ssh import FakeSsh
from tests.support.notes import MemoryNotes
from varuna_manager.cloud.provider import ProviderError, Trouble
from varuna_manager.cloud.ssh import Ssh
from varuna_manager.cloud.static import SshProvider, StaticProvider, open_static
from varuna_manager.pool_settings import SshHost, StaticPool

TICKET = "varuna-join-v1.c2VjcmV0"


class Hosts:
    def __init__(self, root: Path) -> None:
        self.ssh = FakeSsh(root)
        self.notes = MemoryNotes()

    def provider(
        self, *hosts: SshHost, ticket: Callable[[str], str] | None = None, command: str = ""
    ) -> SshProvider:
        pool = StaticPool(name="p", provider="static", hosts=hosts, command=command or str(self.ssh.agent))
        ssh = Ssh(str(self.ssh.program))
        return SshProvider(pool, notes=self.notes, manager_address="10.0.0.1:7", ticket=ticket, ssh=ssh)

    def arguments(self, host: str) -> list[str]:
        path = self.ssh.home(host) / "arguments"
        until_there(path)
        return path.read_text().splitlines()


def until_there(path: Path) -> None:
    while not path.exists() or not path.read_text().endswith("\n"):
        pass


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.ssh.kill_all()


def host(name: str, **fields: object) -> SshHost:
    return SshHost.model_validate({"host": name, "node": f"node-{name.rpartition('@')[2]}", **fields})


def test_a_static_pool_without_hosts_knows_nothing() -> None:
    pool = open_static(StaticPool(name="p", provider="static"), notes=MemoryNotes(), manager_address="")
    assert isinstance(pool, StaticProvider)
    assert pool.read(0.0).instances == ()


def test_an_agent_is_told_where_it_is_and_whom_to_call(hosts: Hosts) -> None:
    provider = hosts.provider(host("me@a", slots=4), command=f"{hosts.ssh.agent} --verbose")
    provider.grow(1, read(provider))
    expected = "--verbose agent --manager 10.0.0.1:7 --node node-a --home FOLDER --slots 4 --host a"
    expected += " --insecure-plaintext"  # the pool has no tickets: its manager was told so by name
    folder = str(hosts.ssh.folder("me@a", "node-a"))
    assert hosts.arguments("me@a") == [folder if word == "FOLDER" else word for word in expected.split()]


def test_no_word_of_the_settings_is_read_by_a_shell(hosts: Hosts) -> None:
    evil = "x'; touch hole #$(touch hole)`touch hole`"
    provider = hosts.provider(
        host("a", address=evil), command=f"{hosts.ssh.agent} '$(touch hole) & touch hole'"
    )
    provider.grow(1, read(provider))
    assert evil in hosts.arguments("a")
    assert "$(touch hole) & touch hole" in hosts.arguments("a")
    assert running(read(provider)) == ["node-a"]
    assert not list(hosts.ssh.root.rglob("hole"))


def test_a_ticket_goes_through_stdin_and_onto_no_command_line(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"), ticket=lambda node: f"{TICKET}.{node}")
    provider.grow(1, read(provider))
    assert hosts.arguments("a")[-2:] == ["--join", "-"]
    until_there(hosts.ssh.home("a") / "stdin")
    assert (hosts.ssh.home("a") / "stdin").read_text() == f"{TICKET}.node-a\n"
    written = [p for p in hosts.ssh.root.rglob("*") if p.is_file() and p.name != "stdin"]
    assert not any(TICKET in path.read_text() for path in written)


def test_an_agent_outlives_the_connection_in_a_session_of_its_own(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"))
    provider.grow(1, read(provider))
    pid = int((hosts.ssh.folder("a", "node-a") / "agent.pid").read_text().split()[0])
    assert pid != os.getsid(0)
    until(provider, lambda _: os.getsid(pid) == pid)  # which it makes after it was started
    assert running(read(provider)) == ["node-a"]


def test_a_pid_of_another_process_is_neither_alive_nor_ended(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"), host("b"))
    provider.grow(2, read(provider))
    record = hosts.ssh.folder("a", "node-a") / "agent.pid"
    pid, start, boot = record.read_text().split()
    record.write_text(f"{pid} {int(start) + 1} {boot}\n")
    assert running(read(provider)) == ["node-b"]
    provider.release(["node-a"], read(provider))
    os.kill(int(pid), 0)
    os.kill(int(pid), 9)


def test_t31_a_host_that_cannot_be_reached_is_a_warning_and_its_node_stays(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"), host("b"), host("c"))
    provider.grow(2, read(provider))
    read(provider)
    for silent in ("b", "c"):
        hosts.ssh.break_down(silent)
    for asked in (provider, hosts.provider(host("a"), host("b"), host("c"))):
        reading = read(asked)
        assert running(reading) == ["node-a", "node-b"], "c had no agent, so it has none now"
        assert [w.partition(":")[0] for w in reading.warnings] == [
            "node-b cannot be asked",
            "node-c cannot be asked",
        ]
    hosts.ssh.mend("b")
    hosts.ssh.kill("b", "node-b")
    reading = until(provider, lambda r: running(r) == ["node-a"])
    assert reading.desired == 1


def test_m9_a_host_that_cannot_be_reached_does_not_keep_others_from_being_released(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"), host("b"))
    provider.grow(2, read(provider))
    reading = read(provider)
    hosts.ssh.break_down("a")
    with pytest.raises(ProviderError, match="Connection refused") as failed:
        provider.release(["node-a", "node-b"], reading)
    assert failed.value.trouble is Trouble.RETRY
    hosts.ssh.mend("a")
    assert running(read(provider)) == ["node-a"]
    provider.release(["node-a", "node-b"], reading)
    assert running(read(provider)) == []


def test_growth_takes_the_next_host_where_one_does_not_answer(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"), host("b"), host("c"))
    hosts.ssh.break_down("a")
    provider.grow(2, read(provider))
    assert running(read(provider)) == ["node-b", "node-c"]
    with pytest.raises(ProviderError) as failed:
        provider.grow(3, read(provider))
    assert failed.value.trouble is Trouble.CAPACITY


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ("user@h: Permission denied (publickey).", Trouble.AUTH),
        ("Host key verification failed.", Trouble.AUTH),
        ("ssh: Could not resolve hostname h: Name or service not known", Trouble.RETRY),
    ],
)
def test_when_no_host_answers_the_failure_tells_what_to_do(hosts: Hosts, said: str, trouble: Trouble) -> None:
    provider = hosts.provider(host("a"))
    hosts.ssh.break_down(said=said)
    with pytest.raises(ProviderError, match=said[:20]) as failed:
        read(provider)
    assert failed.value.trouble is trouble


def test_a_program_that_is_not_there_is_named(hosts: Hosts) -> None:
    provider = hosts.provider(host("a"), command="no-such-varuna")
    with pytest.raises(ProviderError, match="there is no program no-such-varuna") as failed:
        provider.grow(1, read(provider))
    assert failed.value.trouble is Trouble.CONFIG


def test_the_last_words_of_an_agent_that_ended_are_told(hosts: Hosts) -> None:
    script, is_seen = hosts.ssh.root / "failing", hosts.ssh.root / "seen"
    wait = f"until [ -e {is_seen} ]; do sleep 0.05; done"  # one that ends at once is a start that failed
    script.write_text(f"#!/bin/sh\n{wait}\necho no manager answers\nexit 3\n")
    script.chmod(0o755)
    provider = hosts.provider(host("a"), command=str(script))
    provider.grow(1, read(provider))
    is_seen.touch()
    reading = until(provider, lambda r: not r.instances)
    assert reading.warnings == ("the agent of node-a has ended: no manager answers",)


def test_a_missing_ssh_is_a_matter_of_settings() -> None:
    pool = StaticPool(name="p", provider="static", hosts=(host("a"),))
    provider = SshProvider(pool, notes=MemoryNotes(), manager_address="", ssh=Ssh("/nowhere/ssh"))
    with pytest.raises(ProviderError, match="cannot run /nowhere/ssh") as failed:
        read(provider)
    assert failed.value.trouble is Trouble.CONFIG


def test_a_shell_that_greets_is_told_of(hosts: Hosts) -> None:
    hosts.ssh.program.write_text(hosts.ssh.program.read_text().replace("exec env", "echo welcome; exec env"))
    with pytest.raises(ProviderError, match="'welcome'"):
        read(hosts.provider(host("a")))
