"""Any market, any jobs: bounds and budget hold, work is never ended, and all is well once the market is."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.sizing_market import Market, Sized
from varuna_manager.cloud.provider import InstancePhase, ProviderError, Trouble
from varuna_manager.core.events import Durable, ReleaseDecided
from varuna_manager.core.phases import HOLDING, JobPhase
from varuna_manager.pool_settings import Sizing
from varuna_manager.sizing.demand import demand

SIZING = {
    "idle_release_s": 60.0,
    "boot_timeout_s": 120.0,
    "backoff_s": 20.0,
    "backoff_cap_s": 80.0,
    "boot_attempts": 2,
    "stray_grace_s": 30.0,
}
MAX = {"spot": 4, "other": 5}
PRICE = {"spot": 1.0, "other": 2.0}
BUDGET = 7.0
POOLS = st.sampled_from(sorted(MAX))
FAULTS = st.sampled_from(
    [None, *(ProviderError("no", trouble=t, retry_after_s=s) for t in Trouble for s in (None, 25.0))]
)


class CheckedSized(Sized):
    """Checks every growth against max and budget."""

    def check_growth(self, market: Market, desired: int) -> None:
        super().check_growth(market, desired)
        if self.sizing.max_price is None:
            return
        cost = 0.0
        for other in self.markets.values():
            ends = (InstancePhase.GONE, InstancePhase.STOPPED)
            reading = self.memory.of(other.name).reading
            seen = None if reading is None else {i.node for i in reading.instances}
            there = sum(
                m.phase not in ends and (seen is None or m.node in seen) for m in other.machines.values()
            )
            target = desired if other is market else other.desired
            cost += PRICE[other.name] * (there + max(0, target - len(other.living)))
        assert cost <= self.sizing.max_price, f"{cost} dollars per hour"

    def check_ends(self, events: list[Durable]) -> None:
        """As far as the readings tell, what is left still meets the demand."""
        ends = [event for event in events if isinstance(event, ReleaseDecided)]
        ends = [event for event in ends if event.reason.startswith(("no job needs", "idle"))]
        if not ends or self.sizing.max_price is not None:
            return
        left = set().union(*self.last_living.values()) - self.state.ending.keys()
        unread = tuple(f"{name}-" for name in self.markets if self.memory.of(name).reading is None)
        left |= {node for node in self.ready() if node.startswith(unread)}
        left -= {event.node for event in ends}
        assert len(left) >= demand(self.memory, self.state).nodes, f"too few left: {sorted(left)}"


class MarketMachine(RuleBasedStateMachine):
    """Two pools, some jobs, and everything that goes wrong with either."""

    @initialize(
        is_limited=st.booleans(), policy=st.sampled_from(["ordered", "cheapest"]), least=st.integers(0, 1)
    )
    def begin(self, is_limited: bool, policy: str, least: int) -> None:
        self.limit = BUDGET if is_limited else None
        self.least = least
        self.sized = CheckedSized(
            *(Market(name, price=PRICE[name], stock=6) for name in ("spot", "other")),
            sizing=Sizing(max_price=self.limit, policy=policy, **SIZING),  # type: ignore[arg-type]
            spot={"max": MAX["spot"], "min": least},
            other={"max": MAX["other"]},
        )

    @rule(times=st.integers(1, 8))
    def time_passes(self, times: int) -> None:
        self.sized.run_s(times * 10.0)

    @rule(pool=POOLS)
    def a_pass_comes_early(self, pool: str) -> None:
        self.sized.now_s += 1.0
        self.sized.pass_of(pool)

    @rule(most=st.integers(1, 7), least=st.integers(1, 2))
    def submit(self, most: int, least: int) -> None:
        self.sized.submit(f"j{len(self.sized.state.jobs)}", max=max(most, least), min=least)

    @precondition(lambda self: self.sized.state.open_jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.sized.cancel(data.draw(st.sampled_from(self.sized.state.open_jobs)))

    @precondition(lambda self: self._running())
    @rule()
    def finish(self) -> None:
        self.sized.finish(self._running()[0])

    @rule(pool=POOLS, stock=st.integers(0, 6))
    def the_stock_changes(self, pool: str, stock: int) -> None:
        self.sized.markets[pool].stock = stock

    @rule(pool=POOLS, data=st.data())
    def preempt(self, pool: str, data: st.DataObject) -> None:
        market = self.sized.markets[pool]
        if market.living:
            market.preempt(data.draw(st.sampled_from(market.living)))

    @rule(pool=POOLS, fault=FAULTS)
    def reads_fail(self, pool: str, fault: ProviderError | None) -> None:
        self.sized.markets[pool].fails_read = fault

    @rule(pool=POOLS, fault=FAULTS)
    def writes_fail(self, pool: str, fault: ProviderError | None) -> None:
        self.sized.markets[pool].fails_write = fault

    @rule(
        pool=POOLS,
        flag=st.sampled_from(
            ["loses_answers", "ignores_release", "cannot_give_up", "is_slow", "is_mute", "is_writing"]
        ),
    )
    def a_flag_flips(self, pool: str, flag: str) -> None:
        market = self.sized.markets[pool]
        setattr(market, flag, not getattr(market, flag))

    @rule(pool=POOLS)
    def a_machine_appears(self, pool: str) -> None:
        market = self.sized.markets[pool]
        market.machines[market.launch()].is_stray = True

    @precondition(lambda self: self.sized.ready())
    @rule(data=st.data())
    def an_operator_drains(self, data: st.DataObject) -> None:
        self.sized.drain(data.draw(st.sampled_from(self.sized.ready())))

    @rule()
    def the_manager_starts_again(self) -> None:
        self.sized.restart_all()

    def _running(self) -> list[str]:
        return [name for name, job in self.sized.state.jobs.items() if job.phase is JobPhase.RUNNING]

    def teardown(self) -> None:
        if not hasattr(self, "sized"):
            return
        self._heal()
        self.sized.run_s(1500.0)
        self._check_demand()
        for name in list(self.sized.state.open_jobs):
            self.sized.cancel(name)
        self.sized.run_s(1000.0)
        left = {name: market.living for name, market in self.sized.markets.items()}
        assert len(left["other"]) == 0, left
        assert len(left["spot"]) == self.least, left
        assert not self.sized.state.ending

    def _heal(self) -> None:
        for market in self.sized.markets.values():
            market.stock = 100
            market.fails_read = market.fails_write = None
            market.loses_answers = market.ignores_release = market.cannot_give_up = False
            market.is_slow = market.is_mute = market.is_writing = False

    def _check_demand(self) -> None:
        """Where money is no matter, the first job has all the nodes it can use and there are no more."""
        jobs = [job for job in self.sized.state.jobs.values() if job.phase in HOLDING]
        if self.limit is not None or not self.sized.state.open_jobs:
            return
        (job,) = jobs
        wanted = min(job.spec.nodes.max, sum(MAX.values()))
        assert job.phase is JobPhase.RUNNING, (job.phase, job.reason)
        assert job.run is not None
        assert len(job.run.members) >= wanted, f"{len(job.run.members)} of {wanted}: {self.sized.memory}"
        num_idle = self.sized.num_living() - wanted
        assert 0 <= num_idle <= self.least, f"{num_idle} more than {wanted}: {self.sized.memory}"


TestMarket = MarketMachine.TestCase
TestMarket.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
