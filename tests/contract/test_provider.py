"""Every provider keeps the same promises."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fake_provider import FakeProvider
from varuna_manager.cloud.local import AgentLaunch, LocalProvider
from varuna_manager.cloud.provider import InstancePhase
from varuna_manager.home import Home
from varuna_runtime.spec.errors import InvalidInput

Pool = LocalProvider | FakeProvider
SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")


@pytest.fixture(params=["local", "fake"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pool]:
    if request.param == "fake":
        yield FakeProvider()
        return
    local = LocalProvider(Home(tmp_path), AgentLaunch(manager="127.0.0.1:1"), command=lambda *_: SLEEPER)
    yield local
    local.signal_all(signal.SIGKILL)


def states(provider: Pool) -> dict[str, InstancePhase]:
    return {n.node: n.phase for n in provider.list_nodes()}


def eventually(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline, "never became true"
        time.sleep(0.01)


def test_a_new_pool_has_no_nodes(provider: Pool) -> None:
    assert provider.list_nodes() == ()


def test_added_nodes_run_and_are_listed_sorted(provider: Pool) -> None:
    added = provider.add(2)
    assert states(provider) == dict.fromkeys(added, InstancePhase.RUNNING)
    assert [n.node for n in provider.list_nodes()] == sorted(added)


def test_a_terminated_node_is_gone_with_a_reason_and_the_others_stay(
    provider: Pool,
) -> None:
    first, second = provider.add(2)
    provider.terminate(first)
    eventually(lambda: states(provider)[first] is InstancePhase.GONE)
    assert states(provider)[second] is InstancePhase.RUNNING
    assert {n.node: n.reason for n in provider.list_nodes()}[first]


def test_terminating_twice_is_harmless(provider: Pool) -> None:
    (node,) = provider.add(1)
    provider.terminate(node)
    provider.terminate(node)
    eventually(lambda: states(provider) == {node: InstancePhase.GONE})


def test_names_are_not_used_again(provider: Pool) -> None:
    (first,) = provider.add(1)
    provider.terminate(first)
    assert provider.add(1) != (first,)


@pytest.mark.parametrize("act", ["terminate", "notice", "withdraw_notice"])
def test_an_unknown_node_is_refused_by_name(provider: Pool, act: str) -> None:
    call = getattr(provider, act)
    with pytest.raises(InvalidInput, match="nowhere"):
        call("nowhere", 1.0) if act == "notice" else call("nowhere")


def test_a_notice_can_be_given_and_withdrawn_any_number_of_times(
    provider: Pool,
) -> None:
    (node,) = provider.add(1)
    provider.notice(node, 30.0)
    provider.withdraw_notice(node)
    provider.withdraw_notice(node)
    assert states(provider) == {node: InstancePhase.RUNNING}
