"""A replay lends and takes what the recording did, in its time; processes sleep instead of training."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.notes import MemoryNotes
from varuna_manager.cloud.local_machines import AgentLaunch, LocalMachines
from varuna_manager.cloud.opening import open_provider
from varuna_manager.cloud.provider import InstancePhase, PoolReading, Trouble
from varuna_manager.cloud.trace import TraceProvider
from varuna_manager.home import Home
from varuna_manager.pool_settings import TracePool
from varuna_manager.traces import parse
from varuna_runtime.spec.errors import InvalidInput

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
RECORDING = parse("0,add,a\n0,add,b\n60000,remove,a\n60000,remove,b\n60000,add,c\n90000,add,d\n", source="f")
NOW_S = 1_000_000.0


class Alarm:
    """Remembers the one call that is due, for the test to make."""

    def __init__(self) -> None:
        self.in_s: float | None = None
        self._call: Callable[[], None] = self._nothing

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        self.in_s, self._call = seconds, call
        return self.off

    def off(self) -> None:
        self.in_s, self._call = None, self._nothing

    def ring(self) -> None:
        call = self._call
        call()

    def _nothing(self) -> None:
        raise AssertionError("nothing is due")


class Replay:
    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.machines = LocalMachines(self.home, "p", command=lambda *_: SLEEPER)
        self.notes = MemoryNotes()
        self.alarm = Alarm()

    def provider(self, **settings: float) -> TraceProvider:
        pool = TracePool.model_validate({"name": "p", "provider": "trace", "file": "f", **settings})
        launch = AgentLaunch(manager="127.0.0.1:1")
        return TraceProvider(self.machines, launch, RECORDING, pool, self.notes, later=self.alarm.later)


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    made = Replay(tmp_path)
    yield made
    made.machines.signal_all(signal.SIGKILL)


def living(reading: PoolReading) -> list[str]:
    return [i.node for i in reading.instances if i.phase is InstancePhase.RUNNING]


def grown(provider: TraceProvider, desired: int, now_s: float = NOW_S) -> PoolReading:
    provider.grow(desired, provider.read(now_s))
    return provider.read(now_s)


def test_nodes_are_called_after_the_machines_of_the_recording(replay: Replay) -> None:
    assert living(grown(replay.provider(), 2)) == ["a-1", "b-2"]


def test_wanting_more_than_the_recording_offers_is_a_shortage_of_capacity(replay: Replay) -> None:
    reading = grown(replay.provider(), 3)
    assert len(living(reading)) == 2
    assert reading.desired == 3
    assert (reading.shortage, reading.shortage_trouble) == ("the recording offers 2", Trouble.CAPACITY)


def test_losses_that_share_a_time_come_together_and_are_replaced_by_what_is_offered(replay: Replay) -> None:
    provider = replay.provider()
    grown(provider, 2)
    assert living(provider.read(NOW_S + 59.9)) == ["a-1", "b-2"]
    assert living(provider.read(NOW_S + 60)) == ["c-3"]
    assert living(provider.read(NOW_S + 90)) == ["c-3", "d-4"]


def test_what_the_recording_took_is_gone_for_that_reason(replay: Replay) -> None:
    provider = replay.provider()
    grown(provider, 2)
    provider.read(NOW_S + 60)
    for found in _ended(provider, NOW_S + 60):
        assert found == "the recording took its machine"


def _ended(provider: TraceProvider, now_s: float) -> list[str]:
    while any(i.phase is InstancePhase.LEAVING for i in provider.read(now_s).instances):
        pass
    reading = provider.read(now_s)
    return [i.reason for i in reading.instances if i.phase is InstancePhase.GONE]


def test_the_replay_waits_for_the_first_node_to_be_asked_for(replay: Replay) -> None:
    provider = replay.provider()
    provider.read(NOW_S - 1000)
    assert replay.alarm.in_s is None
    grown(provider, 2)
    assert living(provider.read(NOW_S + 59.9)) == ["a-1", "b-2"]


def test_the_replay_is_as_much_faster_as_asked_and_begins_where_asked(replay: Replay) -> None:
    provider = replay.provider(speed_up=10, start_s=30)
    grown(provider, 2)
    assert len(living(provider.read(NOW_S + 2.9))) == 2
    assert living(provider.read(NOW_S + 3)) == ["c-3"]


def test_a_node_vanishes_in_its_time_although_nobody_reads(replay: Replay) -> None:
    provider = replay.provider()
    grown(provider, 2)
    assert replay.alarm.in_s == 60
    replay.alarm.ring()
    assert replay.alarm.in_s == 30, "then d is offered, and is wanted"
    replay.alarm.ring()
    assert replay.alarm.in_s is None, "nothing happens any more"
    assert living(provider.read(NOW_S + 90)) == ["c-3", "d-4"]


def test_a_notice_comes_in_time_and_names_the_end(replay: Replay) -> None:
    provider = replay.provider(notice_s=20)
    grown(provider, 1)
    notice = replay.home.node("a-1") / "notice.json"
    assert replay.alarm.in_s == 40
    assert not notice.exists()
    replay.alarm.ring()
    assert json.loads(notice.read_text()) == {"deadline_unix": NOW_S + 60}
    assert provider.read(NOW_S + 41).instances[0].leaves_at_s == NOW_S + 60
    assert replay.alarm.in_s == 19
    replay.alarm.ring()
    assert living(provider.read(NOW_S + 60)) == ["c-2"]


def test_a_machine_under_notice_is_not_lent_again_when_its_agent_has_left_early(replay: Replay) -> None:
    provider = replay.provider(notice_s=20)
    grown(provider, 1)
    provider.read(NOW_S + 41)
    replay.machines.kill("a-1")
    while "a-1" in living(provider.read(NOW_S + 42)):
        pass
    assert living(provider.read(NOW_S + 42)) == []
    assert living(provider.read(NOW_S + 60)) == ["c-2"]


def test_a_released_node_stays_ended_though_it_is_still_offered(replay: Replay) -> None:
    provider = replay.provider()
    reading = grown(provider, 2)
    provider.release(["b-2"], reading)
    later = provider.read(NOW_S + 30)
    assert living(later) == ["a-1"]
    assert (later.desired, later.shortage) == (1, "")
    assert living(grown(provider, 2, NOW_S + 31)) == ["a-1", "b-3"]


def test_giving_up_lowers_the_target_to_what_came(replay: Replay) -> None:
    provider = replay.provider()
    provider.give_up(grown(provider, 4))
    reading = provider.read(NOW_S)
    assert (reading.desired, reading.shortage, len(living(reading))) == (2, "", 2)


def test_t46_the_next_manager_catches_up_with_the_recording(replay: Replay) -> None:
    first = replay.provider()
    grown(first, 2)
    first.close()
    again = replay.provider()
    reading = again.read(NOW_S + 70)
    assert living(reading) == ["c-3"]
    assert reading.desired == 2
    assert replay.alarm.in_s == 20


@pytest.mark.parametrize(
    ("text", "settings", "complaint"),
    [
        (None, {}, "cannot be read"),
        ("nonsense\n", {}, "line 1"),
        ("0,add,a\n5000,add,b\n", {"start_s": 6.0}, "start_s: seen 6, wanted at most 5"),
    ],
)
def test_a_recording_that_cannot_be_replayed_is_refused_when_opened(
    tmp_path: Path, text: str | None, settings: dict[str, float], complaint: str
) -> None:
    file = tmp_path / "recording"
    if text is not None:
        file.write_text(text)
    pool = TracePool.model_validate({"name": "p", "provider": "trace", "file": str(file), **settings})
    with pytest.raises(InvalidInput, match=complaint):
        open_provider(pool, notes=MemoryNotes(), home=Home(tmp_path), manager_address="127.0.0.1:1")
