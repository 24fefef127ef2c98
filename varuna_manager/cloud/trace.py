"""A recorded spot pool, replayed on processes of this machine: it lends and takes what the recording did."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from varuna_manager import traces
from varuna_manager.cloud.local import MOST_NODES
from varuna_manager.cloud.local_machines import (
    AgentLaunch,
    LocalMachines,
    Ticket,
    copies_share,
    fair_share,
    total_bytes,
)
from varuna_manager.cloud.opening import Notes
from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading, ProviderError, Trouble
from varuna_manager.home import Home
from varuna_manager.pool_settings import TracePool
from varuna_manager.traces import Recording
from varuna_runtime.spec.errors import InvalidInput, VarunaError

_log = structlog.get_logger()

Cancel = Callable[[], None]
Later = Callable[[float, Callable[[], None]], Cancel]
"""(seconds, call) -> how to call it off."""

_STAYS = "never"


def open_trace(
    settings: TracePool, *, notes: Notes, home: Home, manager_address: str, ticket: Ticket | None = None
) -> "TraceProvider":
    """Return the provider of a recorded pool; InvalidInput if the recording cannot be read."""
    try:
        text = Path(settings.file).read_text()
    except (OSError, UnicodeDecodeError) as err:
        raise InvalidInput(
            f"pool {settings.name}: the recording {settings.file} cannot be read: {err}"
        ) from err
    recording = traces.parse(text, source=settings.file)
    if settings.start_s > recording.length_s:
        raise InvalidInput(
            f"pool {settings.name}: start_s: seen {settings.start_s:g}, wanted at most "
            f"{recording.length_s:g}, the length of {settings.file}"
        )
    launch = AgentLaunch(
        manager=manager_address,
        memory_bytes=fair_share(total_bytes(), settings.max),
        copies_bytes=copies_share(total_bytes(), settings.max),
        ticket=ticket,
    )
    return TraceProvider(LocalMachines(home, settings.name), launch, recording, settings, notes)


class TraceProvider:
    """Keeps its target as an instance group does: what was taken is replaced while the recording offers more.

    A node is called after the machine of the recording it runs on. The replay begins when a pool is asked
    for its first node and goes on by the clock, also while no manager runs: the next one catches up.
    """

    def __init__(
        self,
        machines: LocalMachines,
        launch: AgentLaunch,
        recording: Recording,
        settings: TracePool,
        notes: Notes,
        *,
        later: Later | None = None,
    ) -> None:
        self._machines = machines
        self._launch = launch
        self._recording = recording
        self._settings = settings
        self._notes = notes
        self._later = later or _by_timer
        self._lock = threading.Lock()
        self._cancel: Cancel = _nothing
        self._now_s = 0.0
        self._ends: dict[str, float | None] = {}  # by node, in Unix time
        self._warned: set[str] = set()
        self._ended: set[str] = set()  # killed by us: a process needs a moment to be gone

    def read(self, now_s: float) -> PoolReading:
        """Take and lend what is due by now, and return the nodes."""
        with self._lock:
            self._catch_up(now_s)
            nodes = tuple(self._seen(node) for node in self._machines.list_nodes())
            desired, offered = self._desired(), len(self._offered())
            is_short = len(self._living()) < desired
        return PoolReading(
            instances=nodes,
            desired=desired,
            least=0,
            most=MOST_NODES,
            shortage=f"the recording offers {offered}" if is_short else "",
            shortage_trouble=Trouble.CAPACITY if is_short else None,
        )

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Raise the target; nodes come as far as the recording offers them."""
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: the target is {seen.desired} already")
        with self._lock:
            if self._desired() > desired:
                raise ProviderError("the target was raised meanwhile", trouble=Trouble.RETRY)
            self._machines.list_nodes()  # where they cannot be listed, nothing is promised
            if self._notes.get("began") is None:
                self._notes.put("began", repr(self._now_s))
            self._notes.put("desired", str(desired))
            self._catch_up(self._now_s)

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """Kill these agents and lower the target by those that lived."""
        with self._lock:
            living = set(self._living())
            ending = [node for node in dict.fromkeys(self._machines.known(nodes)) if node in living]
            self._notes.put("desired", str(max(0, self._desired() - len(ending))))
            for node in ending:
                self._end(node)

    def give_up(self, seen: PoolReading) -> None:
        """Lower the target to the nodes that live."""
        with self._lock:
            self._notes.put("desired", str(min(self._desired(), len(self._living()))))

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: a recording waits for nobody."""

    def close(self) -> None:
        """Stop acting between readings."""
        with self._lock:
            self._cancel()

    def _catch_up(self, now_s: float) -> None:
        """Do all that is due by now, then see to it that the next thing happens in its time."""
        self._now_s = max(self._now_s, now_s)
        self._take()
        self._lend()
        self._cancel()
        due_s = self._next_due()
        self._cancel = _nothing
        if due_s is not None:
            self._cancel = self._later(max(0.0, due_s - self._now_s), lambda: self._wake(due_s))

    def _wake(self, due_s: float) -> None:
        try:
            with self._lock:
                self._catch_up(due_s)
        except (VarunaError, OSError) as err:
            _log.warning("recording not replayed in time", pool=self._settings.name, why=str(err))

    def _take(self) -> None:
        for node in self._living():
            ends_s = self._end_of(node)
            if ends_s is None:
                continue
            if ends_s <= self._now_s:
                self._end(node)
            elif ends_s - self._settings.notice_s <= self._now_s and node not in self._warned:
                self._warned.add(node)
                self._machines.notice_at(node, ends_s)

    def _lend(self) -> None:
        living = self._living()
        taken = {_machine(node) for node in living}
        free = [m for m in self._offered() if m not in taken and not self._is_under_notice(m)]
        for machine in free[: max(0, self._desired() - len(living))]:
            (node,) = self._machines.add(self._launch, label=machine)
            leaves_s = self._recording.leaves_at(machine, self._place(self._now_s))
            self._ends[node] = None if leaves_s is None else self._moment(leaves_s)
            self._notes.put(f"end of {node}", _STAYS if leaves_s is None else repr(self._ends[node]))

    def _is_under_notice(self, machine: str) -> bool:
        """Return whether a machine leaves so soon that nobody would be given it any more."""
        leaves_s = self._recording.leaves_at(machine, self._place(self._now_s))
        return leaves_s is not None and self._moment(leaves_s) - self._settings.notice_s <= self._now_s

    def _end(self, node: str) -> None:
        self._machines.kill(node)
        self._ended.add(node)

    def _next_due(self) -> float | None:
        """Return the Unix time of the next notice, end or offer that concerns us."""
        due: list[float] = []
        for node in self._living():
            ends_s = self._end_of(node)
            if ends_s is not None:
                due.append(ends_s if node in self._warned else ends_s - self._settings.notice_s)
        change_s = self._recording.next_change(self._place(self._now_s))
        if change_s is not None and len(self._living()) < self._desired():
            due.append(self._moment(change_s))
        return min(due, default=None)

    def _living(self) -> list[str]:
        nodes = self._machines.list_nodes()
        return [n.node for n in nodes if n.phase is InstancePhase.RUNNING and n.node not in self._ended]

    def _offered(self) -> tuple[str, ...]:
        return self._recording.offered(self._place(self._now_s))

    def _seen(self, found: Instance) -> Instance:
        ends_s = self._end_of(found.node)
        if found.phase is InstancePhase.GONE:
            is_taken = ends_s is not None and ends_s <= self._now_s
            return replace(found, reason="the recording took its machine" if is_taken else found.reason)
        if found.node in self._ended:
            return replace(found, phase=InstancePhase.LEAVING, reason="it was ended a moment ago")
        return replace(found, leaves_at_s=ends_s if found.node in self._warned else None)

    def _end_of(self, node: str) -> float | None:
        if node not in self._ends:
            text = self._notes.get(f"end of {node}") or _STAYS
            self._ends[node] = None if text == _STAYS else float(text)
        return self._ends[node]

    def _desired(self) -> int:
        return int(self._notes.get("desired") or 0)

    def _began_s(self) -> float:
        return float(self._notes.get("began") or self._now_s)

    def _place(self, now_s: float) -> float:
        """Return the time within the recording that corresponds to a Unix time."""
        return self._settings.start_s + (now_s - self._began_s()) * self._settings.speed_up

    def _moment(self, at_s: float) -> float:
        """Return the Unix time at which a time of the recording comes."""
        return self._began_s() + (at_s - self._settings.start_s) / self._settings.speed_up


def _machine(node: str) -> str:
    return node.rpartition("-")[0]


def _nothing() -> None:
    pass


def _by_timer(seconds: float, call: Callable[[], None]) -> Cancel:
    timer = threading.Timer(seconds, call)
    timer.daemon = True  # the recording waits for the next manager
    timer.start()
    return timer.cancel
