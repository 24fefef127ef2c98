"""A whole pool over TLS: trained to the same bits while certificates rotate and the manager is killed."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.support.histories import undisturbed
from tests.support.manager_process import ManagerProcess, eventually
from tests.support.pool import Pool, copy_job, kill, pool, wait_until
from tests.support.secured import listening
from varuna_manager.client import Client
from varuna_runtime.agent.joining import own_address
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.tickets import join_ticket, user_token

LIFE_S = 30.0  # renewed at 20: a busy machine may need ten to start a manager again
SLOW = '{STEP_PAUSE_S: "0.03"}'
AGENT = [sys.executable, "-m", "varuna_runtime.agent"]


def credentials(home: pathlib.Path) -> dict[str, dict[str, str]]:
    """What each node of a local pool proves itself with."""
    found = sorted(home.glob("nodes/*/identity/credentials.json"))
    return {path.parts[-3]: json.loads(path.read_text()) for path in found}


def key_lines(pem: str) -> list[str]:
    """The lines of a private key, any of which would give a part of it away."""
    body = pem.partition("PRIVATE KEY-----\n")[2].partition("-----END")[0]
    return [line for line in body.splitlines() if len(line) > 20]


def everything_told(tls: Pool, job: str) -> bytes:
    """Whatever a person or a program can come to see: logs, event lists, documents, the database."""
    logs = {str(path.relative_to(tls.home)): path.read_bytes() for path in tls.home.rglob("*.log")}
    database = [path.read_bytes() for path in tls.home.glob("manager/journal.sqlite*")]
    words = [("events",), ("status",), ("status", job), ("nodes",), ("token", "ls")]
    shown = [tls.run(*each, "--json").stdout.encode() for each in words]
    assert {"manager/manager.log", "nodes/local-1/agent.log", "nodes/local-2/agent.log"} <= logs.keys()
    assert database
    return b"\n".join([*logs.values(), *database, *shown])


@pytest.mark.timeout(300)
def test_a_job_over_tls_ends_with_the_bits_of_a_lone_run_and_no_secret_is_told(
    tmp_path: pathlib.Path,
) -> None:
    truth = undisturbed(tmp_path / "truth")
    config = tmp_path / "manager.yaml"
    config.write_text(f"security: tls\ncertificate_life_s: {LIFE_S}\nlease_s: 30.0\n")
    with pool(tmp_path / "home") as tls:
        tls.up(2, "--config", str(config))
        token = tls.run("token", "create", "--user", "alice").stdout.strip()
        ticket = tls.run("token", "create", "--node", "elsewhere").stdout.strip()
        first = credentials(tls.home)
        assert set(first) == {"local-1", "local-2"}
        folders = [tls.home / "manager", *tls.home.glob("nodes/*")]
        assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}, "another account may look in"
        alice = Pool(home=tls.home, env={**tls.env, "VARUNA_TOKEN": token})
        job = alice.submit(copy_job("tiny", tmp_path / "job", env=SLOW))
        tls.wait(job, lambda s: int(str(s["step"])) > 3)
        everywhere = [address for pid in tls.processes() for address, _ in listening(pid)]
        assert len(everywhere) > 2, "manager, its inner server, and the ranks"
        assert set(everywhere) == {"127.0.0.1"}, "something listens where --host does not say"
        renewed(tls, first)
        kill(tls.manager_pid())
        tls.up(2, "--config", str(config))
        status = tls.wait_end(job)
        assert status["state"] == "succeeded", tls.trail(job)
        assert status["weights_sha256"] == truth.weights_sha256, tls.trail(job)
        assert status["user"] == "alice"
        whats = [e["what"] for e in tls.json("events", job)]
        assert "morph" not in whats, f"neither rotation nor restart is a reason for one\n{tls.trail(job)}"
        told = everything_told(tls, job)
        for secret in secrets_of(tls, token, ticket, first):
            assert secret.encode() not in told, "a secret is in a log, an event, a document or the database"


def renewed(tls: Pool, before: dict[str, dict[str, str]]) -> None:
    """Wait until every node has a certificate that it did not have before."""

    def are_new() -> bool:
        now = credentials(tls.home)
        return all(now[n]["certificate_pem"] != before[n]["certificate_pem"] for n in before)

    wait_until(are_new, "a certificate was not renewed", timeout=60)


def secrets_of(tls: Pool, token: str, ticket: str, first: dict[str, dict[str, str]]) -> list[str]:
    """Every secret there is."""
    manager = tls.home / "manager"
    keys = [(manager / name).read_text() for name in ("authority.pem", "server.pem")]
    keys += [each["key_pem"] for nodes in (first, credentials(tls.home)) for each in nodes.values()]
    tokens = [user_token(token).secret, user_token((manager / "admin.token").read_text()).secret]
    found = [line for key in keys for line in key_lines(key)]
    assert len(found) > 10
    return [*found, *tokens, join_ticket(ticket).secret, (manager / "generation.key").read_text()]


def test_a_node_takes_the_address_of_the_way_to_its_manager() -> None:
    assert own_address("127.0.0.1:7070") == "127.0.0.1"
    assert own_address("localhost:7070") in ("127.0.0.1", "::1")
    with pytest.raises(InvalidInput, match="no way to it from here"):
        own_address("no such host:7070")


class Machine:
    """A machine with a home of its own, whose agent is started again and again."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.home = folder / "machine"
        self.log = folder / "agent.log"

    def start(self, *words: str, told: str = "") -> "subprocess.Popen[str]":
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [*AGENT, "--node", "n1", "--home", str(self.home), *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write(f"{told}\n" if told else "")
        process.stdin.close()
        return process

    def fails(self, *words: str, told: str = "") -> str:
        """Start it; return what it said when it ended by itself, with an error."""
        before = len(self.log.read_text()) if self.log.exists() else 0
        assert self.start(*words, told=told).wait(60) == 1
        return self.log.read_text()[before:]


@pytest.mark.timeout(180)
def test_an_agent_joins_once_and_comes_back_without_a_ticket_until_its_certificate_is_over(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "m").mkdir()
    manager = ManagerProcess(tmp_path / "m", security="tls", certificate_life_s=12.0).start()
    machine = Machine(tmp_path)
    try:
        with manager.client() as client:
            ticket = client.create_ticket("n1")

            def incarnation() -> str:
                return next((n.incarnation for n in client.nodes() if n.state == "READY"), "")

            assert "wanted HOST:PORT" not in machine.fails("--manager", "")
            assert "never there" not in (said := machine.fails("--join", str(tmp_path / "none")))
            assert "no join ticket there" in said
            assert "is for node n2, this is n1" in machine.fails(
                "--join", "-", told=client.create_ticket("n2")
            )
            agent = machine.start("--join", "-", told=ticket)
            eventually(incarnation)
            first = incarnation()
            agent.kill()
            agent.wait()
            again = machine.start()  # no ticket, no address
            eventually(lambda: incarnation() not in ("", first))
            manager.kill()
            assert again.wait(60) == 1  # the manager is away for longer than the certificate lasts
        assert "has expired; make a join ticket on the manager" in machine.log.read_text()
        manager.start()
        with manager.client() as client:
            assert "has expired" in machine.fails()
            assert "is expired" in machine.fails("--join", "-", told=expired_ticket(client))
            anew = machine.start("--join", "-", told=client.create_ticket("n1"))
            eventually(lambda: any(n.state == "READY" for n in client.nodes()))
            anew.terminate()
            assert anew.wait(30) == 0
            eventually(lambda: all(n.state == "LEFT" for n in client.nodes()))
    finally:
        manager.kill()


def expired_ticket(client: Client) -> str:
    text = client.create_ticket("n1", ttl_s=0.05)
    eventually(lambda: any(t.state == "expired" for t in client.tokens() if t.id == join_ticket(text).id))
    return text
