"""A spot market in virtual time, and sizing, core and agents around it: what a keeper does, without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.support.core_sim import Sim
from varuna_manager.cloud.provider import (
    Instance,
    InstancePhase,
    PoolReading,
    ProviderError,
    Trouble,
)
from varuna_manager.core.actions import MakePlan
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import Durable, NodeDisconnected, PlanMade, Ticked, Told
from varuna_manager.core.words import What
from varuna_manager.pool_settings import Sizing
from varuna_manager.sizing.decide import decide, outcome
from varuna_manager.sizing.decisions import Answer, Failed, GiveUp, Grow, LetGo, Post, Release, Write
from varuna_manager.sizing.memory import Memory
from varuna_manager.sizing.settings import Rules, Settings
from varuna_runtime.spec.errors import InvalidInput

_LONG_S = 1e6
PATIENT = CoreConfig(
    lease_s=_LONG_S,
    activate_timeout_s=_LONG_S,
    prepare_timeout_s=_LONG_S,
    profile_timeout_s=_LONG_S,
    drain_timeout_s=_LONG_S,
    abort_timeout_s=_LONG_S,
)
"""Nothing times out by itself, so that hours can pass in a few ticks."""
_ALIVE = (InstancePhase.STARTING, InstancePhase.RUNNING)


@dataclass
class Machine:
    node: str
    phase: InstancePhase
    since_s: float
    leaves_at_s: float | None = None
    is_stray: bool = False
    reason: str = ""


class Market:
    """A group that keeps itself at its target as far as the stock goes; faults are set by the test."""

    def __init__(
        self, name: str, *, stock: int = 1000, price: float | None = None, boot_s: float = 30.0
    ) -> None:
        self.name = name
        self.stock = stock  # machines that can be had in all
        self.price = price
        self.boot_s = boot_s
        self.desired = 0
        self.least = 0
        self.most = 1000
        self.machines: dict[str, Machine] = {}
        self.fails_read: ProviderError | None = None
        self.fails_write: ProviderError | None = None
        self.loses_answers = False  # carries writes out and says that it does not know
        self.ignores_release = False
        self.cannot_give_up = False
        self.is_slow = False  # launches nothing and says nothing
        self.is_mute = False  # machines never join
        self.shows_failures = False  # what there is no stock of is listed, as a machine that does not run
        self.fleeting_s: float | None = None  # machines end by themselves after this, and none replaces them
        self.kind = "cpu:avx2"
        self.warnings: tuple[str, ...] = ()
        self.is_writing = False
        self.num_reads = 0
        self.writes: list[str] = []
        self.now_s = 0.0
        self._count = 0
        self._is_short = False

    def read(self, now_s: float) -> PoolReading:
        self.num_reads += 1
        if self.fails_read is not None:
            raise self.fails_read
        return PoolReading(
            instances=tuple(
                Instance(
                    node=m.node,
                    phase=m.phase,
                    reason=m.reason,
                    since_s=m.since_s,
                    leaves_at_s=m.leaves_at_s,
                    is_stray=m.is_stray,
                )
                for _, m in sorted(self.machines.items())
            ),
            desired=self.desired,
            least=self.least,
            most=self.most,
            price=self.price,
            shortage="InsufficientInstanceCapacity" if self._is_short else "",
            shortage_trouble=Trouble.CAPACITY if self._is_short else None,
            warnings=self.warnings,
            is_writing=self.is_writing,
        )

    def grow(self, desired: int, seen: PoolReading) -> None:
        self._write(f"grow {desired}")
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: {seen.desired} already")
        self.desired = desired
        self._lose()

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        self._write(f"release {' '.join(nodes)}")
        for node in nodes:
            machine = self.machines[node]
            if self.ignores_release or machine.phase is InstancePhase.GONE:
                continue
            if (machine.phase is not InstancePhase.STOPPED or self.shows_failures) and not machine.is_stray:
                self.desired -= 1
            machine.phase, machine.reason = InstancePhase.GONE, "ended by us"
        self._lose()

    def give_up(self, seen: PoolReading) -> None:
        self._write("give up")
        if not self.cannot_give_up:
            self.desired = min(self.desired, self._num_listed if self.shows_failures else len(self.living))
        self._lose()

    def let_go(self, node: str, seen: PoolReading) -> None:
        self._write(f"let go {node}")
        self.machines[node].phase = InstancePhase.GONE

    @property
    def living(self) -> list[str]:
        return [m.node for m in self.machines.values() if m.phase in _ALIVE and not m.is_stray]

    @property
    def _num_listed(self) -> int:
        return sum(m.phase is not InstancePhase.GONE and not m.is_stray for m in self.machines.values())

    def launch(self) -> str:
        self._count += 1
        node = f"{self.name}-{self._count}"
        self.machines[node] = Machine(node=node, phase=InstancePhase.STARTING, since_s=self.now_s)
        return node

    def preempt(self, node: str) -> None:
        self.machines[node].phase = InstancePhase.GONE
        self.machines[node].reason = "Server.SpotInstanceTermination"

    def advance(self, now_s: float) -> None:
        self.now_s = now_s
        while len(self.living) < self.desired and len(self.living) < self.stock and not self.is_slow:
            self.launch()
        while self.shows_failures and self._num_listed < self.desired:
            failed = self.machines[self.launch()]
            failed.phase, failed.reason = InstancePhase.STOPPED, "AllocationFailed"
        self._is_short = len(self.living) < self.desired and not self.is_slow
        for machine in self.machines.values() if self.fleeting_s is not None else ():
            if machine.phase in _ALIVE and now_s - machine.since_s >= self.fleeting_s:
                machine.phase, machine.reason = InstancePhase.GONE, "its process has ended"
                self.desired -= 1
        for machine in self.machines.values():
            if machine.phase is InstancePhase.STARTING and now_s - machine.since_s >= self.boot_s:
                machine.phase = InstancePhase.RUNNING

    def _write(self, what: str) -> None:
        if self.fails_write is not None:
            raise self.fails_write
        self.writes.append(what)

    def _lose(self) -> None:
        if self.loses_answers:
            raise ProviderError("connection reset", trouble=Trouble.RETRY)


class Sized(Sim):
    """A core whose nodes come from markets; `run_s` lets time pass with a pass every `poll_s`."""

    def __init__(self, *markets: Market, sizing: Sizing | None = None, **rules: dict[str, object]) -> None:
        super().__init__(PATIENT)
        self.markets = {market.name: market for market in markets}
        self.sizing = sizing or Sizing()
        self.settings = Settings(
            rules=tuple(self._rules(name, rules.get(name, {})) for name in self.markets),
            sizing=self.sizing,
        )
        self.memory = Memory()
        self.written: list[Write] = []
        self.mute: set[str] = set()
        self.last_living: dict[str, set[str]] = {}  # at the newest reading of each pool

    def _rules(self, name: str, changes: dict[str, object]) -> Rules:
        fields: dict[str, object] = {
            "pool": name,
            "provider": "aws",
            "min": 0,
            "max": 16,
            "price": None,
            "is_sized": True,
            "poll_s": self.sizing.poll_s,
        }
        return Rules(**{**fields, **changes})  # type: ignore[arg-type]

    def run_s(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += self.sizing.poll_s
            self.turn()

    def turn(self) -> None:
        """The world moves, then every pool has a pass of its own, as with the keeper."""
        for market in self.markets.values():
            market.advance(self.now_s)
        self._join_and_die()
        self.feed(Ticked(at_s=self.now_s))
        for name in self.markets:
            self.pass_of(name)
        self._join_and_die()

    def pass_of(self, *names: str) -> None:
        if any(self.memory.of(name).quiet_until_s > self.now_s for name in names):
            return
        answers = {name: self._read(name) for name in names}
        self.memory, decisions = decide(self.memory, self.state, answers, self.settings, self.now_s)
        self.check_ends([d.event for d in decisions if isinstance(d, Post)])
        for decision in decisions:
            if isinstance(decision, Post):
                self.feed(decision.event)
            else:
                assert isinstance(answers[decision.pool], PoolReading), "a write without a fresh read"
                self._carry_out(decision, answers[decision.pool])

    def _read(self, name: str) -> Answer:
        try:
            reading = self.markets[name].read(self.now_s)
            self.last_living[name] = set(self.markets[name].living)
            return reading
        except ProviderError as err:
            return Failed(trouble=err.trouble, message=str(err), retry_after_s=err.retry_after_s)

    def _carry_out(self, write: Write, seen: Answer) -> None:
        assert isinstance(seen, PoolReading)
        self.written.append(write)
        failure = None
        try:
            self._call(write, seen)
        except ProviderError as err:
            failure = Failed(trouble=err.trouble, message=str(err), retry_after_s=err.retry_after_s)
        self.memory, posts = outcome(self.memory, self.state, write, failure, self.settings, self.now_s)
        for post in posts:
            assert isinstance(post, Post)
            self.feed(post.event)

    def _call(self, write: Write, seen: PoolReading) -> None:
        market = self.markets[write.pool]
        match write:
            case Grow(desired=desired):
                self.check_growth(market, desired)
                market.grow(desired, seen)
            case Release(nodes=nodes):
                for node in nodes:
                    assert node in self.state.ending, f"{node} was never cordoned"
                    assert not self.state.is_busy(node), f"busy {node} released"
                market.release(nodes, seen)
            case GiveUp():
                market.give_up(seen)
            case LetGo(node=node):
                market.let_go(node, seen)

    def check_growth(self, market: Market, desired: int) -> None:
        """What must hold at each growth; a subclass may check more."""
        assert desired <= self.settings.of(market.name).max, "beyond max"

    def check_ends(self, events: list[Durable]) -> None:
        """What must hold of the machines whose end a pass decides; a subclass checks it."""

    def _join_and_die(self) -> None:
        for market in self.markets.values():
            for machine in list(market.machines.values()):
                agent = self.agents.get(machine.node)
                may_join = not (market.is_mute or machine.is_stray or machine.node in self.mute)
                if machine.phase is InstancePhase.RUNNING and agent is None and may_join:
                    self.join(machine.node, kind=market.kind)
                elif (
                    machine.phase in (InstancePhase.GONE, InstancePhase.STOPPED) and agent and agent.is_alive
                ):
                    agent.is_alive = False
                    self._stream_ends(machine.node)

    def _stream_ends(self, node: str) -> None:
        agent = self.agents[node]
        if agent.is_connected:
            agent.is_connected = False
            self.feed(
                NodeDisconnected(
                    at_s=self.now_s, node=node, incarnation=agent.incarnation, reason="its connection broke"
                )
            )

    def _plan(self, action: MakePlan) -> PlanMade:
        """No plan has more nodes than the job may have."""
        request = action.request
        nodes = request.nodes[: request.spec.nodes.max]
        return super()._plan(replace(action, request=replace(request, nodes=nodes)))

    def restart_all(self) -> None:
        """The manager starts again: what sizing remembered is gone, the agents come back."""
        self.restart()
        self.memory = Memory()
        self.return_all()

    def told(self, what: What) -> list[str]:
        """Return the lines of that kind so far."""
        return [event.why for event in self.journal if isinstance(event, Told) and event.what is what]

    def ready(self) -> list[str]:
        """Return the nodes that could be planned with."""
        return sorted(name for name, node in self.state.nodes.items() if node.is_plannable)

    def num_living(self) -> int:
        return sum(len(market.living) for market in self.markets.values())
