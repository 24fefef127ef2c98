"""The Azure provider on the real SDK, against a server that plays Azure, Uniform and Flexible alike."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.contract.provider_suite import ProviderSuite, alive, grown, read, running, seen, settled, until
from tests.support.clouds.azure_arm import SUBSCRIPTION
from tests.support.clouds.azure_world import Machine, Rules, ScaleSet
from tests.support.clouds.fake_azure import FakeAzure
from tests.support.notes import MemoryNotes
from varuna_manager.cloud.azure import open_azure
from varuna_manager.cloud.azure.compute import OPERATIONS, Compute
from varuna_manager.cloud.azure.scale_set import AzureProvider
from varuna_manager.cloud.provider import InstancePhase, Market, PoolReading, ProviderError, Trouble
from varuna_manager.pool_settings import AzurePool
from varuna_runtime.spec.errors import InvalidInput

SETTINGS = AzurePool(
    name="a", provider="azure", subscription=SUBSCRIPTION, resource_group="rg", scale_set="pool"
)
LONG_S = 3600.0


@dataclass
class ScaleSetPool:
    """A scale set of a fake Azure and a provider of it."""

    azure: FakeAzure
    is_flexible: bool
    names_return: bool = False
    notes: MemoryNotes = field(default_factory=MemoryNotes)
    opened: list[AzureProvider] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.azure.locked() as world:
            self.set = world.add(ScaleSet(name="pool", is_flexible=self.is_flexible))
        self.rules = world.rules
        self.provider: AzureProvider = self.reopen()

    def reopen(self) -> AzureProvider:
        """Return a provider that believes a list at once."""
        self.opened.append(AzureProvider(SETTINGS, self.notes, Compute(SETTINGS), settle_s=0.0))
        return self.opened[-1]

    def open_as_in_earnest(self) -> AzureProvider:
        self.opened.append(open_azure(SETTINGS, notes=self.notes))
        return self.opened[-1]

    def machine(self, node: str) -> Machine:
        with self.azure.locked() as world:
            return world.find(node)[1]

    def kill(self, node: str) -> None:
        with self.azure.locked() as world:
            world.evict(*world.find(node))

    @contextmanager
    def failing(self) -> Iterator[None]:
        self.azure.fail(".", times=1000, status=503, code="ServerBusy", retry_after_s=1)
        yield
        self.azure.faults.clear()

    def count(self, request: str) -> int:
        """Return how many requests there were so far that begin with `request`."""
        return sum(r.startswith(request) for r in self.azure.faults.requests)

    @property
    def num_writes(self) -> int:
        return sum(self.count(method) for method in ("PATCH", "POST", "DELETE", "PUT"))

    def living(self) -> list[str]:
        with self.azure.locked():
            return [m.name for m in self.set.living()]


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    with FakeAzure(tmp_path, Rules(boot_s=0.02, write_s=0.02)) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


@contextmanager
def opened(azure: FakeAzure, *, is_flexible: bool) -> Iterator[ScaleSetPool]:
    pool = ScaleSetPool(azure, is_flexible)
    yield pool
    for provider in pool.opened:
        provider.close()


@pytest.fixture(params=["uniform", "flexible"])
def pool(azure: FakeAzure, request: pytest.FixtureRequest) -> Iterator[ScaleSetPool]:
    with opened(azure, is_flexible=request.param == "flexible") as found:
        yield found


@pytest.fixture
def uniform(azure: FakeAzure) -> Iterator[ScaleSetPool]:
    with opened(azure, is_flexible=False) as found:
        yield found


@pytest.fixture
def flexible(azure: FakeAzure) -> Iterator[ScaleSetPool]:
    with opened(azure, is_flexible=True) as found:
        yield found


def refused(call: Callable[[], object]) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call()
    return caught.value


def quiet(reading: PoolReading) -> bool:
    return not reading.is_writing


class TestSuite(ProviderSuite):
    """What every provider promises."""


class TestReading:
    def test_machines_are_told_with_all_that_azure_knows_over_several_pages(self, pool: ScaleSetPool) -> None:
        grown(pool, 5)
        reading = read(pool.provider)
        assert [i.node for i in reading.instances] == sorted(pool.living())
        first = reading.instances[0]
        assert (first.zone, first.kind, first.market) == ("1", "Standard_NC4as_T4_v3", Market.SPOT)
        assert first.since_s == pytest.approx(pool.machine(first.node).created_s, abs=1e-3)
        assert (reading.desired, reading.least, reading.most, reading.warnings) == (5, 0, 1000, ())

    def test_half_a_list_is_no_reading(self, pool: ScaleSetPool) -> None:
        grown(pool, 3)
        pool.azure.fail("skiptoken=2", status=400)
        assert "list the machines" in str(refused(lambda: read(pool.provider)))

    def test_a_machine_in_the_making_has_no_power_state_and_is_starting(self, pool: ScaleSetPool) -> None:
        pool.rules.boot_s = LONG_S
        pool.provider.grow(1, read(pool.provider))
        (found,) = until(pool.provider, quiet).instances
        assert found.phase is InstancePhase.STARTING

    def test_a_machine_on_its_way_out_is_leaving_and_no_write_may_start(self, pool: ScaleSetPool) -> None:
        first, _ = grown(pool, 2)
        pool.rules.write_s = LONG_S
        pool.provider.release([first], read(pool.provider))
        reading = read(pool.provider)
        found = seen(reading, first)
        assert found is not None
        assert found.phase is InstancePhase.LEAVING
        assert reading.is_writing

    def test_a_deallocated_machine_is_stopped_and_can_be_released(self, pool: ScaleSetPool) -> None:
        pool.set.eviction_policy = "Deallocate"
        first, second = grown(pool, 2)
        pool.kill(first)
        reading = read(pool.provider)
        found = seen(reading, first)
        assert found is not None
        assert (found.phase, reading.desired) == (InstancePhase.STOPPED, 2)
        assert "deallocated" in found.reason
        pool.provider.release([first], reading)
        assert running(settled(pool.provider, 1)) == [second]

    @pytest.mark.parametrize(
        ("setting", "value", "words"),
        [
            ("eviction_policy", "Deallocate", "use Delete"),
            ("restores", True, "spot restore"),
            ("overprovision", True, "overprovision"),
            ("repairs", True, "automatic repairs"),
            ("more", {"upgradePolicy": {"mode": "Automatic"}}, "upgrade policy"),
            (
                "more",
                {"upgradePolicy": {"automaticOSUpgradePolicy": {"enableAutomaticOSUpgrade": True}}},
                "OS upgrades",
            ),
            (
                "more",
                {"resiliencyPolicy": {"automaticZoneRebalancingPolicy": {"enabled": True}}},
                "zone rebalancing",
            ),
        ],
    )
    def test_a_setting_that_does_harm_is_told(
        self, uniform: ScaleSetPool, setting: str, value: object, words: str
    ) -> None:
        setattr(uniform.set, setting, value)
        (warning,) = read(uniform.provider).warnings
        assert words in warning

    def test_somebody_else_who_raises_the_capacity_is_told(self, pool: ScaleSetPool) -> None:
        grown(pool, 1)
        with pool.azure.locked() as world:
            world.set_capacity(pool.set, 3, None)
        assert "from 1 to 3 without our doing" in settled(pool.provider, 3).warnings[0]

    def test_m43_a_reading_costs_the_set_and_the_pages_of_its_machines(self, pool: ScaleSetPool) -> None:
        grown(pool, 3)
        before = len(pool.azure.faults.requests)
        read(pool.provider)
        assert len(pool.azure.faults.requests) - before == 3

    def test_one_placement_group_holds_a_hundred(self, uniform: ScaleSetPool) -> None:
        uniform.set.single_placement_group = True
        assert read(uniform.provider).most == 100


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("status", "code", "trouble"),
        [
            (409, "Conflict", Trouble.RETRY),
            (412, "PreconditionFailed", Trouble.RETRY),
            (403, "AuthorizationFailed", Trouble.AUTH),
            (404, "ResourceNotFound", Trouble.CONFIG),
            (400, "InvalidParameter", Trouble.CONFIG),
            (409, "SkuNotAvailable", Trouble.CAPACITY),
            (409, "SpotPriceGreaterThanProvidedMaxPrice", Trouble.CAPACITY),
            (500, "InternalOperationError", Trouble.RETRY),
        ],
    )
    def test_a_refused_write_is_of_a_kind(
        self, uniform: ScaleSetPool, status: int, code: str, trouble: Trouble
    ) -> None:
        reading = read(uniform.provider)
        uniform.azure.fail("PATCH", times=9, status=status, code=code)
        err = refused(lambda: uniform.provider.grow(1, reading))
        assert err.trouble is trouble
        assert code in str(err)

    def test_a_quota_is_told_as_one(self, pool: ScaleSetPool) -> None:
        pool.rules.quota = 2
        err = refused(lambda: pool.provider.grow(3, read(pool.provider)))
        assert err.trouble is Trouble.QUOTA
        assert "LowPriorityCores" in str(err)
        assert running(settled(pool.provider, 0)) == []

    def test_m33_throttling_is_not_hammered_and_says_how_long_to_wait(self, pool: ScaleSetPool) -> None:
        pool.azure.fail(".", times=99, status=429, code="OperationNotAllowed", retry_after_s=30)
        err = refused(lambda: read(pool.provider))
        assert (err.trouble, err.retry_after_s) == (Trouble.THROTTLED, 30.0)
        assert len(pool.azure.faults.requests) == 1

    def test_m31_nothing_is_written_while_nothing_can_be_read(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 2)
        reading = read(pool.provider)
        pool.azure.fail("GET", times=99, status=429, code="TooManyRequests", retry_after_s=30)
        before = pool.num_writes
        refused(lambda: pool.provider.grow(3, reading))
        refused(lambda: pool.provider.release(nodes, reading))
        refused(lambda: pool.provider.give_up(reading))
        refused(lambda: read(pool.reopen()))
        assert pool.num_writes == before

    def test_a_blip_is_bridged(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 2)
        pool.azure.fail("GET", times=2, status=503)
        assert running(read(pool.provider)) == nodes

    def test_a_token_that_is_refused_is_a_matter_of_credentials(self, pool: ScaleSetPool) -> None:
        read(pool.provider)
        pool.azure.token = "another"
        assert refused(lambda: read(pool.provider)).trouble is Trouble.AUTH

    def test_no_credentials_at_all_are_told(
        self, pool: ScaleSetPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
        err = refused(lambda: read(pool.reopen()))
        assert err.trouble is Trouble.AUTH
        assert "EnvironmentCredential" in str(err)

    def test_a_set_that_does_not_exist_is_a_matter_of_settings(self, pool: ScaleSetPool) -> None:
        with pool.azure.locked() as world:
            del world.sets["pool"]
        err = refused(lambda: read(pool.provider))
        assert err.trouble is Trouble.CONFIG
        assert "ResourceNotFound" in str(err)

    def test_a_server_that_nobody_vouches_for_is_not_spoken_to(
        self, pool: ScaleSetPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("VARUNA_AZURE_CA")
        assert refused(lambda: read(pool.reopen())).trouble is Trouble.RETRY
        assert pool.azure.faults.requests == []

    def test_a_missing_sdk_is_named_with_what_to_install(self) -> None:
        program = (
            "import sys; sys.modules['azure'] = None\n"
            "from varuna_manager.cloud.azure import open_azure\n"
            "from varuna_manager.pool_settings import AzurePool\n"
            "open_azure(AzurePool(name='a', provider='azure', subscription='s', resource_group='g', "
            "scale_set='v'), notes=None)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "InvalidInput: pool a" in done.stderr
        assert "pip install 'varuna[azure]'" in done.stderr


class TestGrowing:
    def test_an_open_write_is_told_without_waiting_and_lets_no_other_start(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 1)
        pool.rules.write_s = LONG_S
        pool.provider.grow(2, read(pool.provider))
        reading = read(pool.provider)
        assert (reading.is_writing, reading.desired) == (True, 2)
        before = pool.num_writes
        for call in (
            lambda: pool.provider.grow(3, reading),
            lambda: pool.provider.release(nodes, reading),
        ):
            assert refused(call).trouble is Trouble.RETRY
        pool.provider.give_up(reading)
        assert pool.num_writes == before

    def test_nothing_is_written_while_somebody_else_changes_the_set(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 2)
        pool.rules.write_s = LONG_S
        with pool.azure.locked() as world:
            world.set_capacity(pool.set, 2, None)
        reading, before = read(pool.provider), pool.num_writes
        assert reading.is_writing
        assert refused(lambda: pool.provider.grow(3, reading)).trouble is Trouble.RETRY
        assert refused(lambda: pool.provider.release(nodes, reading)).trouble is Trouble.RETRY
        pool.provider.give_up(reading)
        assert pool.num_writes == before

    def test_an_allocation_that_fails_later_is_a_shortage_and_leaves_machines_to_release(
        self, pool: ScaleSetPool
    ) -> None:
        nodes = grown(pool, 2)
        pool.rules.stock = 1
        pool.provider.grow(5, read(pool.provider))
        reading = until(pool.provider, lambda r: quiet(r) and len(running(r)) == 3)
        assert (reading.desired, reading.shortage_trouble) == (5, Trouble.CAPACITY)
        assert "AllocationFailed" in reading.shortage
        failed = [i for i in reading.instances if i.phase is InstancePhase.STOPPED]
        assert len(failed) == 2
        assert all("AllocationFailed" in i.reason for i in failed)
        pool.provider.release([i.node for i in failed], reading)
        reading = settled(pool.provider, 3)
        assert (reading.shortage, reading.shortage_trouble) == ("", None)
        assert pool.notes.get("azure-write") is None
        assert set(nodes) < set(running(reading))

    def test_what_did_not_come_is_given_up_without_ending_anybody(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 2)
        pool.rules.stock, pool.rules.leaves_failed = 0, False
        pool.provider.grow(4, read(pool.provider))
        reading = until(pool.provider, quiet)
        assert (reading.desired, reading.shortage_trouble) == (4, Trouble.CAPACITY)
        pool.provider.give_up(reading)
        reading = settled(pool.provider, 2)
        assert (running(reading), reading.shortage, pool.set.capacity) == (nodes, "", 2)

    def test_a_shortage_lasts_until_its_capacity_could_be_taken_back(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 1)
        pool.rules.stock, pool.rules.leaves_failed = 0, False
        pool.provider.grow(2, read(pool.provider))
        until(pool.provider, quiet)
        provider, now_s = pool.open_as_in_earnest(), 1000.0
        for in_s in (0, 10):
            reading = provider.read(now_s + in_s)
            assert (reading.desired, reading.shortage_trouble) == (2, Trouble.CAPACITY)
            provider.give_up(reading)
        assert pool.set.capacity == 2
        provider.give_up(provider.read(now_s + 60))
        reading = until(provider, quiet)
        assert (running(reading), reading.desired, reading.shortage) == (nodes, 1, "")

    def test_a_list_that_lags_behind_ends_nobody(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 2)
        provider, now_s = pool.open_as_in_earnest(), 1000.0
        provider.read(now_s)
        with pool.azure.locked():
            hidden = pool.set.machines.popitem()
        before = pool.num_writes
        reading = provider.read(now_s + 10)
        assert (running(reading), reading.desired, reading.shortage) == (nodes[:1], 2, "")
        provider.give_up(reading)
        err = refused(lambda: provider.grow(2, replace(reading, desired=1)))
        assert err.trouble is Trouble.RETRY
        assert pool.num_writes == before
        with pool.azure.locked():
            pool.set.machines.update([hidden])
        assert provider.read(now_s + 50).desired == 2
        with pool.azure.locked():
            del pool.set.machines[hidden[0]]
        assert provider.read(now_s + 60).desired == 2
        assert provider.read(now_s + 100).desired == 1

    def test_nothing_is_given_up_where_everything_came(self, pool: ScaleSetPool) -> None:
        grown(pool, 2)
        before = pool.num_writes
        pool.provider.give_up(read(pool.provider))
        assert pool.num_writes == before

    @pytest.mark.parametrize("setting", ["restores", "overprovision"])
    def test_nothing_is_given_up_while_azure_may_add_machines(
        self, uniform: ScaleSetPool, setting: str
    ) -> None:
        grown(uniform, 2)
        uniform.rules.evict_lowers_capacity = False
        setattr(uniform.set, setting, True)
        uniform.kill(uniform.living()[0])
        before = uniform.num_writes
        uniform.provider.give_up(read(uniform.provider))
        assert uniform.num_writes == before
        assert any("was not lowered" in w for w in read(uniform.provider).warnings)

    @pytest.mark.parametrize("seeks_capacity", [True, False])
    def test_an_eviction_that_leaves_the_capacity_behind_is_made_good(
        self, pool: ScaleSetPool, seeks_capacity: bool
    ) -> None:
        first, *others = grown(pool, 3)
        pool.rules.evict_lowers_capacity, pool.rules.seeks_capacity = False, seeks_capacity
        pool.kill(first)
        reading = settled(pool.provider, 2)
        assert pool.set.capacity == 3
        for wanted in (3, 4):
            _grow_until(pool.provider, wanted)
            assert set(others) < set(running(settled(pool.provider, wanted)))
        assert reading.shortage == ""

    def test_an_eviction_since_the_reading_is_noticed_before_a_write(self, pool: ScaleSetPool) -> None:
        nodes = grown(pool, 3)
        reading = read(pool.provider)
        pool.kill(nodes[0])
        before = pool.num_writes
        assert refused(lambda: pool.provider.grow(4, reading)).trouble is Trouble.RETRY
        assert pool.num_writes == before
        assert running(settled(pool.provider, 2)) == nodes[1:]

    def test_a_write_is_only_good_for_the_set_that_was_read(self, pool: ScaleSetPool) -> None:
        grown(pool, 1)
        reading, gate = read(pool.provider), threading.Event()
        pool.azure.fail("PATCH", gate=gate)
        with ThreadPoolExecutor(1) as threads:
            growing = threads.submit(pool.provider.grow, 2, reading)
            before = pool.count("PATCH")
            while pool.count("PATCH") == before and not growing.done():
                time.sleep(0.01)
            with pool.azure.locked():
                pool.set.version += 1  # somebody else was faster
            gate.set()
            err = growing.exception(30)
        assert isinstance(err, ProviderError)
        assert (err.trouble, pool.set.capacity) == (Trouble.RETRY, 1)

    def test_m8_a_lost_answer_does_not_double_the_growth(self, pool: ScaleSetPool) -> None:
        pool.rules.write_s = LONG_S
        pool.azure.fail("PATCH", is_lost=True)
        reading = read(pool.provider)
        assert refused(lambda: pool.provider.grow(3, reading)).trouble is Trouble.RETRY
        assert refused(lambda: pool.provider.grow(3, reading)).trouble is Trouble.RETRY
        reading = read(pool.provider)
        assert (reading.is_writing, reading.desired, len(alive(reading))) == (True, 3, 3)
        assert (reading.warnings, pool.count("PATCH")) == ((), 1)
        with pool.azure.locked():
            pool.set.operations[-1].ends_s = 0.0
        assert len(running(settled(pool.provider, 3))) == 3

    def test_a_failure_whose_answer_was_lost_is_told_by_the_machines_it_left(
        self, pool: ScaleSetPool
    ) -> None:
        pool.rules.stock = 0
        pool.azure.fail("PATCH", is_lost=True)
        refused(lambda: pool.provider.grow(1, read(pool.provider)))
        reading = until(pool.provider, quiet)
        assert (reading.desired, reading.shortage_trouble) == (1, Trouble.CAPACITY)
        assert "AllocationFailed" in reading.shortage


class TestRestart:
    def test_a_new_manager_follows_the_write_of_the_old_one(self, pool: ScaleSetPool) -> None:
        pool.rules.write_s = LONG_S
        pool.provider.grow(2, read(pool.provider))
        again = pool.reopen()
        assert read(again).is_writing
        with pool.azure.locked():
            pool.set.operations[-1].ends_s = 0.0
        assert len(running(settled(again, 2))) == 2
        assert pool.notes.get("azure-write") is None

    def test_a_new_manager_learns_how_the_write_of_the_old_one_failed(self, pool: ScaleSetPool) -> None:
        pool.rules.write_s, pool.rules.stock, pool.rules.leaves_failed = LONG_S, 0, False
        pool.provider.grow(2, read(pool.provider))
        with pool.azure.locked():
            pool.set.operations[-1].ends_s = 0.0
        for _ in range(2):  # and the next one still knows
            reading = read(pool.reopen())
            assert reading.shortage_trouble is Trouble.CAPACITY
            assert "set the capacity of pool from 0 to 2: AllocationFailed" in reading.shortage
            with pool.azure.locked():
                pool.set.operations.clear()

    @pytest.mark.parametrize("notes", ["{", "[]", '{"write": "other"}', "null"])
    def test_notes_of_another_version_are_no_obstacle(self, pool: ScaleSetPool, notes: str) -> None:
        pool.notes.put("azure-write", notes)
        assert len(grown(pool, 1)) == 1

    @pytest.mark.parametrize("handle", ["nonsense", "e30="])
    def test_a_handle_that_cannot_be_read_is_dropped(self, pool: ScaleSetPool, handle: str) -> None:
        pool.notes.put(
            "azure-write",
            f'{{"write": "capacity", "deed": "x", "handle": "{handle}", "failure": "", "trouble": null}}',
        )
        assert not read(pool.provider).is_writing
        assert pool.notes.get("azure-write") is None

    def test_a_write_that_azure_has_forgotten_is_over(self, pool: ScaleSetPool) -> None:
        pool.rules.write_s = LONG_S
        pool.provider.grow(1, read(pool.provider))
        with pool.azure.locked():
            pool.set.operations.clear()
            pool.set.state = "Succeeded"
        assert len(running(settled(pool.provider, 1))) == 1

    def test_a_write_that_cannot_be_asked_about_makes_no_reading(self, pool: ScaleSetPool) -> None:
        pool.rules.write_s = LONG_S
        pool.provider.grow(1, read(pool.provider))
        pool.azure.fail("operations/", status=429, code="TooManyRequests", retry_after_s=7)
        err = refused(lambda: read(pool.provider))
        assert (err.trouble, err.retry_after_s) == (Trouble.THROTTLED, 7.0)
        assert read(pool.provider).is_writing


class TestReleasing:
    def test_m34_several_machines_of_a_uniform_set_end_in_one_call(self, uniform: ScaleSetPool) -> None:
        nodes = grown(uniform, 4)
        uniform.provider.release(nodes[1:], read(uniform.provider))
        assert running(settled(uniform.provider, 1)) == nodes[:1]
        assert uniform.count("POST") == 1

    def test_m34_a_delete_of_ours_is_waited_for_without_asking_azure_to_write(
        self, uniform: ScaleSetPool
    ) -> None:
        first, second, _ = grown(uniform, 3)
        uniform.rules.write_s = LONG_S
        uniform.provider.release([first], read(uniform.provider))
        before, reading = uniform.num_writes, read(uniform.provider)
        assert reading.is_writing
        assert refused(lambda: uniform.provider.release([second], reading)).trouble is Trouble.RETRY
        assert refused(lambda: uniform.provider.grow(4, reading)).trouble is Trouble.RETRY
        assert uniform.num_writes == before

    def test_m34_a_delete_of_somebody_else_is_waited_for(self, uniform: ScaleSetPool) -> None:
        first, second, third = grown(uniform, 3)
        uniform.rules.write_s = LONG_S
        with uniform.azure.locked() as world:
            operation = world.delete(uniform.set, [uniform.machine(first).id])
        err = refused(lambda: uniform.provider.release([second], read(uniform.provider)))
        assert err.trouble is Trouble.RETRY
        assert "Conflict" in str(err)
        with uniform.azure.locked():
            operation.ends_s, uniform.rules.write_s = 0.0, 0.0
        uniform.provider.release([second], read(uniform.provider))
        assert running(settled(uniform.provider, 1)) == [third]

    def test_m9_a_delete_that_fails_later_is_told_and_can_be_repeated(self, uniform: ScaleSetPool) -> None:
        first, second, third = grown(uniform, 3)
        uniform.rules.write_s = LONG_S
        uniform.provider.release([first, second], read(uniform.provider))
        with uniform.azure.locked() as world:
            spared, operation = world.find(second)[1], uniform.set.operations[-1]
            world.evict(*world.find(first))
            operation.ends = lambda: setattr(spared, "state", "running")
            operation.error = {"code": "InternalExecutionError", "message": "one was left over"}
            operation.ends_s = uniform.rules.write_s = 0.0
        reading = read(uniform.provider)
        assert running(reading) == [second, third]
        assert any("one was left over" in w for w in reading.warnings)
        uniform.provider.release([second], reading)
        reading = settled(uniform.provider, 1)
        assert (running(reading), reading.warnings) == ([third], ())

    def test_m9_one_delete_of_several_that_is_refused_does_not_spare_the_others(
        self, flexible: ScaleSetPool
    ) -> None:
        first, second, third = grown(flexible, 3)
        flexible.azure.fail(f"DELETE .*{second}", status=409, code="Conflict")
        err = refused(lambda: flexible.provider.release([first, second, third], read(flexible.provider)))
        assert err.trouble is Trouble.RETRY
        assert second in str(err)
        assert first not in str(err)
        assert running(settled(flexible.provider, 1)) == [second]
        flexible.provider.release([second], read(flexible.provider))
        settled(flexible.provider, 0)

    def test_deletes_stop_at_the_first_that_is_throttled(self, flexible: ScaleSetPool) -> None:
        nodes = grown(flexible, 3)
        flexible.azure.fail("DELETE", times=9, status=429, code="TooManyRequests", retry_after_s=5)
        err = refused(lambda: flexible.provider.release(nodes, read(flexible.provider)))
        assert (err.trouble, err.retry_after_s, flexible.count("DELETE")) == (Trouble.THROTTLED, 5.0, 1)

    def test_m8_a_lost_answer_ends_no_second_machine(self, pool: ScaleSetPool) -> None:
        first, second, third = grown(pool, 3)
        reading = read(pool.provider)
        pool.azure.fail("POST|DELETE", is_lost=True)
        with suppress(ProviderError):  # the SDK itself repeats a DELETE
            pool.provider.release([first], reading)
        settled(pool.provider, 2)
        pool.provider.release([first], reading)
        assert running(settled(pool.provider, 2)) == [second, third]

    def test_a_machine_that_goes_away_meanwhile_is_not_a_mistake_in_the_settings(
        self, pool: ScaleSetPool
    ) -> None:
        first, second = grown(pool, 2)
        gate, reading = threading.Event(), read(pool.provider)
        pool.azure.fail("POST|DELETE", gate=gate)
        with ThreadPoolExecutor(1) as threads:
            releasing = threads.submit(pool.provider.release, [first], reading)
            while not pool.num_writes > 1 and not releasing.done():
                time.sleep(0.01)
            pool.kill(first)
            gate.set()
            err = releasing.exception(30)
        assert err is None or (isinstance(err, ProviderError) and err.trouble is Trouble.RETRY)
        assert running(settled(pool.provider, 1)) == [second]

    def test_what_was_read_long_ago_is_still_known(self, pool: ScaleSetPool) -> None:
        first, second = grown(pool, 2)
        old = read(pool.provider)
        pool.kill(first)
        settled(pool.provider, 1)
        pool.provider.release([first], old)
        pool.reopen().release([first], old)
        assert running(settled(pool.provider, 1)) == [second]


def test_no_capacity_is_ever_lowered_below_what_lives(pool: ScaleSetPool) -> None:
    """Azure picks the machines that a lower capacity ends, so that none may be picked."""
    nodes = grown(pool, 3)
    pool.rules.evict_lowers_capacity = False
    pool.kill(nodes[2])
    settled(pool.provider, 2)
    pool.rules.stock, pool.rules.leaves_failed = 0, False
    with suppress(ProviderError, InvalidInput):
        _grow_until(pool.provider, 4)
    pool.provider.give_up(until(pool.provider, quiet))
    assert running(settled(pool.provider, 2)) == nodes[:2]
    assert [m.name for m in pool.set.machines.values()] == nodes[:2]


def test_the_actions_used_are_those_declared(azure: FakeAzure) -> None:
    for is_flexible in (False, True):
        with opened(azure, is_flexible=is_flexible) as pool:
            first, _ = grown(pool, 2)
            pool.provider.release([first], read(pool.provider))
            settled(pool.provider, 1)
            pool.provider.give_up(read(pool.provider))
    assert set(azure.calls) == OPERATIONS


def _grow_until(provider: AzureProvider, desired: int) -> None:
    """Ask until the target is raised, as the keeper does: taking capacity back is a write of its own."""
    while (reading := until(provider, quiet)).desired < desired and not reading.shortage:
        provider.grow(desired, reading)
