"""What every provider promises, told once; a pool under test plugs in through a small adapter."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import pytest

from varuna_manager.cloud.provider import (
    Instance,
    InstancePhase,
    PoolReading,
    Provider,
    ProviderError,
    Trouble,
)
from varuna_runtime.spec.errors import InvalidInput

ALIVE = (InstancePhase.STARTING, InstancePhase.RUNNING)
LIMIT_S = 30.0


class PoolUnderTest(Protocol):
    """One pool of a provider, without nodes at first and with room for at least four."""

    provider: Provider
    names_return: bool  # a machine, or its name, may come back after it was gone

    def reopen(self) -> Provider:
        """Return another provider of the same pool, as a manager that was started again has it."""
        ...

    def kill(self, node: str) -> None:
        """Take a machine away, as its market may at any time."""
        ...

    def failing(self) -> AbstractContextManager[None]:
        """Let no call succeed meanwhile."""
        ...


def read(provider: Provider) -> PoolReading:
    return provider.read(time.time())


def alive(reading: PoolReading) -> list[str]:
    return [i.node for i in reading.instances if i.phase in ALIVE]


def running(reading: PoolReading) -> list[str]:
    return [i.node for i in reading.instances if i.phase is InstancePhase.RUNNING]


def seen(reading: PoolReading, node: str) -> Instance | None:
    return next((i for i in reading.instances if i.node == node), None)


def until(provider: Provider, holds: Callable[[PoolReading], bool]) -> PoolReading:
    """Read until it holds; fails with the last reading."""
    deadline = time.monotonic() + LIMIT_S
    while not holds(reading := read(provider)):
        assert time.monotonic() < deadline, reading
        time.sleep(0.02)
    return reading


def settled(provider: Provider, count: int) -> PoolReading:
    """Read until exactly `count` nodes run, nothing else is on its way, and no write is open."""
    return until(
        provider,
        lambda r: (
            len(running(r)) == len(alive(r)) == r.desired == count
            and not r.is_writing
            and all(i.phase in (*ALIVE, InstancePhase.GONE) for i in r.instances)
        ),
    )


def grown(pool: PoolUnderTest, count: int) -> list[str]:
    """Return the nodes after growing to `count`."""
    pool.provider.grow(count, read(pool.provider))
    return running(settled(pool.provider, count))


def written(call: Callable[[], None]) -> None:
    """Write again although the reading is old: refused for now at most, never harmful."""
    refusal: Trouble | None = None
    try:
        call()
    except ProviderError as err:
        refusal = err.trouble
    assert refusal in (None, Trouble.RETRY)


class ProviderSuite:
    """Every implementation keeps these; the fixture `pool` gives a PoolUnderTest."""

    def test_a_new_pool_has_no_nodes(self, pool: PoolUnderTest) -> None:
        reading = settled(pool.provider, 0)
        assert reading.least <= 0
        assert reading.most >= 4

    def test_a_grown_pool_has_that_many_nodes_listed_by_name(self, pool: PoolUnderTest) -> None:
        pool.provider.grow(3, read(pool.provider))
        reading = settled(pool.provider, 3)
        names = [i.node for i in reading.instances]
        assert names == sorted(set(names))
        assert reading.price is None or reading.price > 0

    def test_growing_twice_on_one_reading_grows_once(self, pool: PoolUnderTest) -> None:
        old = settled(pool.provider, 0)
        pool.provider.grow(2, old)
        first = running(settled(pool.provider, 2))
        written(lambda: pool.provider.grow(2, old))
        assert running(settled(pool.provider, 2)) == first

    @pytest.mark.parametrize("desired", [0, 1, 2])
    def test_growing_to_what_is_there_or_less_is_refused(self, pool: PoolUnderTest, desired: int) -> None:
        nodes = grown(pool, 2)
        with pytest.raises(InvalidInput):
            pool.provider.grow(desired, read(pool.provider))
        assert running(settled(pool.provider, 2)) == nodes

    def test_a_released_node_ends_and_nothing_comes_in_its_place(self, pool: PoolUnderTest) -> None:
        first, second, third = grown(pool, 3)
        pool.provider.release([first, third], read(pool.provider))
        assert running(settled(pool.provider, 1)) == [second]
        assert running(settled(pool.provider, 1)) == [second]

    def test_releasing_twice_lowers_the_target_once(self, pool: PoolUnderTest) -> None:
        first, second = grown(pool, 2)
        old = read(pool.provider)
        pool.provider.release([first], old)
        settled(pool.provider, 1)
        written(lambda: pool.provider.release([first], old))
        pool.provider.release([first], read(pool.provider))
        assert running(settled(pool.provider, 1)) == [second]

    def test_m44_releasing_at_once_twice_lowers_the_target_once(self, pool: PoolUnderTest) -> None:
        first, *others = grown(pool, 3)
        old = read(pool.provider)
        written(lambda: pool.provider.release([first], old))
        written(lambda: pool.provider.release([first], old))
        assert running(settled(pool.provider, 2)) == others

    @pytest.mark.parametrize("mixed", [False, True])
    def test_a_node_the_pool_never_had_is_refused_by_name(self, pool: PoolUnderTest, mixed: bool) -> None:
        nodes = grown(pool, 2)
        wanted = [nodes[0], "nowhere"] if mixed else ["nowhere"]
        with pytest.raises(InvalidInput, match="nowhere"):
            pool.provider.release(wanted, read(pool.provider))
        assert running(settled(pool.provider, 2)) == nodes

    def test_releasing_none_does_nothing(self, pool: PoolUnderTest) -> None:
        nodes = grown(pool, 1)
        pool.provider.release([], read(pool.provider))
        assert running(settled(pool.provider, 1)) == nodes

    def test_a_taken_node_is_seen_and_the_others_stay(self, pool: PoolUnderTest) -> None:
        first, second = grown(pool, 2)
        before = seen(read(pool.provider), first)
        pool.kill(first)
        reading = until(pool.provider, lambda r: seen(r, first) != before)
        found = seen(reading, first)
        assert found is None or found.phase is not InstancePhase.GONE or found.reason
        assert second in running(reading)

    def test_m15_releasing_a_taken_node_is_harmless(self, pool: PoolUnderTest) -> None:
        first, second = grown(pool, 2)
        before = seen(read(pool.provider), first)
        pool.kill(first)
        reading = until(pool.provider, lambda r: seen(r, first) != before and first not in alive(r))
        written(lambda: pool.provider.release([first], reading))
        after = until(pool.provider, lambda r: len(running(r)) == r.desired and not r.is_writing)
        assert second in running(after)

    def test_names_are_not_used_again(self, pool: PoolUnderTest) -> None:
        if pool.names_return:
            pytest.skip("its machines, or their names, are fixed and come back")
        (first,) = grown(pool, 1)
        pool.provider.release([first], read(pool.provider))
        settled(pool.provider, 0)
        assert first not in grown(pool, 2)

    def test_m31_a_failed_read_is_an_error_of_a_known_kind_and_changes_nothing(
        self, pool: PoolUnderTest
    ) -> None:
        nodes = grown(pool, 2)
        with pool.failing(), pytest.raises(ProviderError) as failed:
            read(pool.provider)
        assert failed.value.trouble is not Trouble.UNKNOWN
        assert running(settled(pool.provider, 2)) == nodes

    def test_a_failed_write_is_an_error_of_a_known_kind_and_may_be_repeated(
        self, pool: PoolUnderTest
    ) -> None:
        nodes = grown(pool, 2)
        reading = read(pool.provider)
        with pool.failing():
            _fails(lambda: pool.provider.grow(3, reading))
            _fails(lambda: pool.provider.release(nodes[:1], reading))
        assert running(settled(pool.provider, 2)) == nodes
        pool.provider.release(nodes[:1], read(pool.provider))
        assert running(settled(pool.provider, 1)) == nodes[1:]

    def test_giving_up_and_letting_go_end_no_living_node(self, pool: PoolUnderTest) -> None:
        nodes = grown(pool, 2)
        pool.provider.give_up(read(pool.provider))
        pool.provider.let_go(nodes[0], read(pool.provider))
        assert running(settled(pool.provider, 2)) == nodes

    def test_t46_another_provider_of_the_pool_sees_the_same(self, pool: PoolUnderTest) -> None:
        first, second = grown(pool, 2)
        again = pool.reopen()
        assert running(settled(again, 2)) == [first, second]
        again.release([first], read(again))
        assert running(settled(again, 1)) == [second]


def _fails(write: Callable[[], None]) -> None:
    with pytest.raises(ProviderError) as failed:
        write()
    assert failed.value.trouble is not Trouble.UNKNOWN
