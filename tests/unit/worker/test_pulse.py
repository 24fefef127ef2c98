"""Who is silent, judged by the looks of one rank alone, in virtual time."""

import pytest

from varuna_runtime.worker.link.pulse import BEAT_S, LOOK_S, SILENT_S, Look, Pulse, Silence, Traffic


class Watch:
    """A rank with peers that looks every `LOOK_S`; `spoken` and `told` are bytes by peer."""

    def __init__(self, *peers: int) -> None:
        self.now_s = 0.0
        self.pulse = Pulse(peers, self.now_s)
        self.spoken = dict.fromkeys(peers, 0)
        self.told = dict.fromkeys(peers, 0)
        self.changes: list[Silence] = []
        self.beats: list[int] = []

    def look(self, after_s: float = LOOK_S) -> Look:
        self.now_s += after_s
        traffic = {peer: Traffic(self.spoken[peer], self.told[peer]) for peer in self.spoken}
        look = self.pulse.look(self.now_s, traffic)
        self.changes += look.changes
        self.beats += look.due
        return look

    def watch(self, for_s: float, *, speaking: tuple[int, ...] = ()) -> None:
        for _ in range(round(for_s / LOOK_S)):
            for peer in speaking:
                self.spoken[peer] += 1
            self.look()

    @property
    def silent(self) -> list[int]:
        return [change.rank for change in self.changes if change.silent_s]


def test_a_peer_of_which_nothing_comes_is_silent_and_told_once() -> None:
    watch = Watch(1, 2)
    watch.watch(SILENT_S - 2 * LOOK_S, speaking=(2,))
    assert watch.changes == []
    watch.watch(3.0, speaking=(2,))
    assert watch.silent == [1]
    assert watch.changes[0].silent_s == pytest.approx(SILENT_S, abs=2 * LOOK_S)


def test_a_silent_peer_that_speaks_is_heard_again_and_may_fall_silent_again() -> None:
    watch = Watch(1)
    watch.watch(2.0)
    watch.watch(0.5, speaking=(1,))
    assert watch.changes[-1] == Silence(1, 0.0)
    watch.watch(2.0)
    assert watch.silent == [1, 1]


def test_beats_go_to_peers_that_were_told_nothing_else() -> None:
    watch = Watch(1, 2)
    for _ in range(round(3.0 / LOOK_S)):
        watch.told[2] += 1
        watch.look()
    assert set(watch.beats) == {1}
    assert len(watch.beats) == pytest.approx(3.0 / BEAT_S, abs=2)


def test_who_did_not_look_does_not_blame_its_peers() -> None:
    watch = Watch(1)
    watch.watch(SILENT_S - 2 * LOOK_S)
    watch.look(after_s=30.0)
    watch.watch(SILENT_S - 2 * LOOK_S)
    assert watch.changes == []
    watch.watch(1.0)
    assert watch.silent == [1]


def test_a_peer_that_spoke_while_nobody_looked_is_heard() -> None:
    watch = Watch(1)
    watch.watch(2.0)
    watch.spoken[1] += 1
    assert watch.look(after_s=2.0).changes == (Silence(1, 0.0),)


def test_a_peer_that_left_is_not_judged_any_more() -> None:
    watch = Watch(1, 2)
    del watch.spoken[1]
    watch.watch(3.0, speaking=(2,))
    assert watch.changes == []


def test_looks_have_their_own_pace() -> None:
    pulse = Pulse([1], 0.0)
    assert not pulse.is_due(LOOK_S / 2)
    assert pulse.is_due(LOOK_S)
