"""A manager that starts the agents of its hosts over ssh, and ends them when nothing needs them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_ssh import FakeSsh
from tests.support.manager_process import ManagerProcess, eventually


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSsh]:
    """A `ssh` of ours, first on the path of what the test starts."""
    root = tmp_path / "hosts"
    root.mkdir()
    made = FakeSsh(root)
    monkeypatch.setenv("PATH", str(root), prepend=":")
    yield made
    made.kill_all()


@pytest.mark.timeout(240)
def test_a_manager_starts_the_agents_it_needs_and_replaces_one_that_died(
    tmp_path: Path, ssh: FakeSsh
) -> None:
    hosts = [{"host": f"h{i}", "node": f"n{i}", "address": "127.0.0.1"} for i in range(2)]
    command = f"{sys.executable} -m varuna_manager.cli"
    farm = {"name": "farm", "provider": "static", "min": 1, "max": 2, "hosts": hosts, "command": command}
    manager = ManagerProcess(tmp_path, pools=[farm], sizing={"poll_s": 0.5})
    try:
        with manager.start().client() as client:

            def ready() -> list[int]:
                return [node.pid for node in client.nodes() if node.node == "n0" and node.state == "READY"]

            eventually(ready)
            (first,) = ready()
            assert {node.node for node in client.nodes()} == {"n0"}, "one is enough"
            ssh.kill("h0", "n0")
            eventually(lambda: ready() and ready() != [first])
    finally:
        manager.kill()
