"""Does one fault after another to a pool, each in the phase it was dealt."""

import contextlib
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.chaos.disk import SmallDisk
from tests.support.chaos.machines import Machines, some_skew_s
from tests.support.chaos.matrix import Cell, Done, Kind, Phase
from tests.support.chaos.phases import Phases
from tests.support.clouds.fault_proxy import FaultProxy, Rule, html_error
from tests.support.pool import is_alive

NODES = 4
_TRIES = 3
_PHASE_S = 4.0
_LONG_S = 15.0
_TAKEN_S = 8.0
_IN_A_ROW = 3  # then something may become durable: starts that fail one after the other wait ever longer
_DURABLE_S = 60.0
_SIGNALS = {
    Kind.SIGKILL: signal.SIGKILL,
    Kind.SIGSTOP: signal.SIGSTOP,
    Kind.SIGTERM: signal.SIGTERM,
    Kind.SEGFAULT: signal.SIGSEGV,
}
_ROLES = {
    Phase.IMPORT: ("importer", "importer", "agent", "manager"),
    Phase.PLAN: ("planner", "planner", "manager", "agent", "launcher", "vault"),
    Phase.LOAD: ("worker", "worker", "worker", "launcher", "agent", "manager", "vault"),
    Phase.STEP: ("worker", "worker", "workers", "launcher", "agent", "agents", "manager", "vault"),
    Phase.SAVE: ("worker", "worker", "workers", "launcher", "agent", "agents", "manager"),
    Phase.RECOVER: ("worker", "worker", "launcher", "agent", "agents", "manager", "planner", "vault"),
}
# What a market and its people do besides; no fault, and so in no cell.
_HAPPENINGS = ("notice", "withdrawn notice", "drain", "join", "end of a guard")
_PLACES = {Phase.IMPORT: ("import",), Phase.LOAD: ("load",), Phase.RECOVER: ("load", "loss")}
_RARE = frozenset(Phase) - {Phase.STEP, Phase.SAVE}
_SOCKET = re.compile(r"\d+\s+\d+\s+(\S+):(\d+)\s+(\S+):(\d+)\s")  # queues, then both ends


class Injector:
    """Faults of one seed; whatever is broken for a while is mended by `mend`."""

    def __init__(
        self,
        seed: int,
        machines: Machines,
        phases: Phases,
        folder: Path,
        *,
        disk: SmallDisk | None,
        proxy: FaultProxy | None,
    ) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._machines = machines
        self._phases = phases
        self._folder = folder
        self._disk = disk
        self._proxy = proxy
        self._mending: list[threading.Thread] = []
        self._in_a_row = 0
        self.done: list[Done] = []
        self.missed: list[Cell] = []
        self.happened: list[tuple[float, str]] = []
        self.thawed: set[int] = set()

    def do(self, cell: Cell) -> None:
        """Do a fault in its phase, which is provoked if need be; after some tries it counts as missed.

        Whom it hits and how long it lasts follows from seed and cell, whatever came before.
        """
        self._random = random.Random(f"{self._seed} {cell.kind} {cell.phase}")
        if self._in_a_row >= _IN_A_ROW:
            self._machines.tend(NODES)
            self._phases.wait_durable(_DURABLE_S)
            self._in_a_row = 0
        for _ in range(_TRIES):
            self._machines.tend(NODES)
            if self._reach(cell.phase) and (target := self._act(cell)):
                self._note(cell.kind, cell.phase, target)
                return
        self.missed.append(cell)

    def next_of(self, cells: list[Cell]) -> Cell:
        """Take out the first whose phase the job is in just now and is rarely in, else the first."""
        now = [cell for cell in cells if cell.phase in _RARE and self._phases.is_now(cell.phase)]
        chosen = (now or cells)[0]
        cells.remove(chosen)
        return chosen

    def stir(self) -> None:
        """Have something happen that is no fault: nodes are announced to end, drained, or join."""
        nodes = sorted(self._machines.agents())
        what = self._random.choice(_HAPPENINGS)
        if not nodes:
            return
        node = self._random.choice(nodes)
        match what:
            case "notice":
                self._machines.notice(node, self._random.choice([1.0, 4.0]))
            case "withdrawn notice":
                self._machines.notice(node, 8.0)
                self._later(self._random.uniform(0.2, 3.0), lambda: self._machines.withdraw_notice(node))
            case "drain":
                self._machines.drain(node)
            case "join":
                self._machines.add(1)
            case _:
                _send_all(self._pids("guard"), signal.SIGKILL)
        self.happened.append((time.time(), f"{what}: {node}"))

    def mend(self) -> None:
        """Wait until nothing is broken any more by us, and have the pool whole."""
        for thread in self._mending:
            thread.join()
        for path in self._folder.glob("at-*"):
            path.unlink(missing_ok=True)
        self._machines.tend(NODES)

    def _note(self, kind: Kind, phase: Phase, target: str) -> None:
        now_s = time.time()
        self._phases.last_fault_s = now_s
        self._in_a_row += 1
        self.done.append(Done(kind=kind, phase=phase, target=target, at_s=now_s))

    def _reach(self, phase: Phase) -> bool:
        """Wait for a phase; what a running job does not come to by itself is provoked by another fault."""
        if phase in (Phase.STEP, Phase.SAVE) or self._phases.is_now(phase):
            return self._phases.wait(phase, _LONG_S)
        self._phases.wait(Phase.STEP, _PHASE_S)
        if phase is Phase.PLAN and self._freeze("planner", self._machines.targets("planner"), 1.5):
            self._note(Kind.SIGSTOP, Phase.STEP, "planner")  # or the plan is made before we see that one is
        role = "agent" if phase is Phase.IMPORT else self._random.choice(["worker", "worker", "agent"])
        during = Phase.STEP if self._phases.is_now(Phase.STEP) else Phase.RECOVER
        pids = self._machines.targets(role)
        if pids and _send(self._random.choice(pids), signal.SIGKILL):
            self._note(Kind.SIGKILL, during, role)
        if phase is Phase.IMPORT:  # a newcomer warms up at once
            self._machines.add(1)
        return self._phases.wait(phase, _LONG_S if phase is Phase.IMPORT else _PHASE_S)

    def _act(self, cell: Cell) -> str:
        """Return what was hit; empty if there was nothing to hit."""
        match cell.kind:
            case Kind.EXIT:
                return self._lay("exit", cell.phase)
            case Kind.SEGFAULT if cell.phase is not Phase.PLAN and self._random.random() < 0.5:
                return self._lay("segfault", cell.phase)
            case Kind.DROPPED_TCP:
                return self._drop(cell.phase)
            case Kind.DISK:
                return self._break_disk()
            case Kind.STORE:
                return self._break_store()
            case Kind.CLOCK:
                return self._skew_clock()
            case _:
                return self._signal(cell)

    def _signal(self, cell: Cell) -> str:
        role = self._random.choice(_ROLES[cell.phase])
        number = _SIGNALS[cell.kind]
        pids = self._pids(role)
        if number is signal.SIGSTOP:
            return self._freeze(role, pids, self._random.choice([0.3, 1.0, 2.5, 5.0]))
        hit = [pid for pid in pids if _send(pid, number)]
        return role if hit else ""

    def _pids(self, role: str) -> list[int]:
        """Return whom to hit: one of a role, several workers, or every agent at once."""
        if role == "importer":
            found = self._phases.importing()
        else:
            found = self._machines.targets(role.removesuffix("s"))
        if role.endswith("s"):
            return found if role == "agents" else found[::2] or found
        return [self._random.choice(found)] if found else []

    def _freeze(self, role: str, pids: list[int], for_s: float) -> str:
        hit = [pid for pid in pids if _send(pid, signal.SIGSTOP)]
        if role in ("agent", "agents"):  # its workers go on, and nobody ends them before it thaws
            self.thawed.update(pid for agent in hit for pid in self._machines.below(agent))
        self.thawed.update(hit)
        self._later(for_s, lambda: _send_all(hit, signal.SIGCONT))
        return role if hit else ""

    def _lay(self, act: str, phase: Phase) -> str:
        """Have the script of some process do it when it comes to a place; empty if none came."""
        place = self._random.choice(_PLACES.get(phase, ("loss", "data")))
        path = self._folder / f"at-{place}"
        (draft := self._folder / "draft").write_text(act)
        draft.rename(path)
        deadline = time.monotonic() + _TAKEN_S
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            return ""
        return f"script at {place}"

    def _drop(self, phase: Phase) -> str:
        roles = ["worker", "worker", "agent", "manager", "vault"]
        role = self._random.choice(roles if phase in (Phase.STEP, Phase.SAVE, Phase.LOAD) else roles[2:4])
        pids = self._pids(role)
        return f"connections of {role}" if pids and drop_connections(pids[0]) else ""

    def _break_disk(self) -> str:
        assert self._disk is not None
        disk = self._disk
        if self._random.random() < 0.5:
            disk.fill()
            self._later(self._random.uniform(1.0, 4.0), disk.empty)
            return "disk full"
        disk.stand_still()
        self._later(self._random.uniform(0.3, 2.0), disk.go_on)
        return "disk stands still"

    def _break_store(self) -> str:
        assert self._proxy is not None
        proxy = self._proxy
        rule = self._random.choice(
            [
                html_error("(PUT|GET|HEAD|DELETE) .*", status=503),
                html_error("PUT .*", status=500),
                Rule(operation="PUT .*", loses=True),
                Rule(operation="(PUT|GET) .*", drops=True),
                Rule(operation="PUT .*", delay_s=self._random.uniform(0.3, 1.5)),
                html_error("PUT .*manifest.json", status=503),
            ]
        )
        proxy.add(rule)
        self._later(self._random.uniform(0.5, 4.0), proxy.heal)
        return f"store {'delays' if rule.delay_s else rule.status or 'drops'} {rule.operation.split()[0]}"

    def _skew_clock(self) -> str:
        """A node or a manager whose clock is days off, or a notice by such a clock."""
        skew_s = some_skew_s(self._random)
        agents = self._machines.agents()
        choice = self._random.choice(["node", "node", "manager", "notice"])
        if choice == "manager":
            _send(self._machines.manager(), signal.SIGKILL)
            _gone(self._machines.manager)
            self._machines.start_manager(skew_s)
            return f"manager {skew_s} s off"
        node = self._random.choice(sorted(agents)) if agents else ""
        if choice == "notice" and node:
            self._machines.notice(node, self._random.choice([-3600.0, 86400.0]))
            self._later(3.0, lambda: self._machines.withdraw_notice(node))
            return "notice by a clock that is off"
        if node:
            _send(agents[node], signal.SIGKILL)
        self._machines.add(1, skew_s)
        return f"node {skew_s} s off"

    def _later(self, after_s: float, mend: Callable[[], object]) -> None:
        def wait_and_mend() -> None:
            time.sleep(after_s)
            mend()

        thread = threading.Thread(target=wait_and_mend, name="mending")
        self._mending.append(thread)
        thread.start()


def drop_connections(pid: int) -> int:
    """Break every TCP connection of a process as a lost peer does; return how many."""
    shown = subprocess.run(
        ["ss", "-tnpHO", "state", "established"], capture_output=True, text=True, timeout=20, check=False
    )
    lines = [line for line in shown.stdout.splitlines() if f"pid={pid}," in line]
    ends = [match.groups() for line in lines if (match := _SOCKET.match(line))]
    for here, port, there, far_port in ends:
        where = ["src", here, "sport", "=", f":{port}", "and", "dst", there, "dport", "=", f":{far_port}"]
        subprocess.run(["ss", "-K", *where], capture_output=True, timeout=20, check=False)
    return len(ends)


def _send(pid: int, number: signal.Signals) -> bool:
    if not pid or not is_alive(pid):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _send_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        _send(pid, number)


def _gone(manager: Callable[[], int]) -> None:
    deadline = time.monotonic() + 10.0
    while manager() and time.monotonic() < deadline:
        time.sleep(0.01)
