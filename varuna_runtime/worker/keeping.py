"""One rank's own copies: memory of its node's vault, filled behind the training, then sent to buddies.

Training waits only for tensors that are still being read when the next step would change them, and never
for a buddy. Made after any fork.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from varuna_runtime.checkpoint.staging import stage
from varuna_runtime.spec.copies import CopiedTensor, Copy, CopyRecord, Version
from varuna_runtime.spec.errors import VarunaError, VaultLost, VaultRefused
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.worker.buddies import FAULTS, RETRY_S, Line
from varuna_runtime.worker.copy_layout import arranged, size_of, tensor_over
from varuna_runtime.worker.engine import EngineState, Keeping
from varuna_runtime.worker.keep_policy import KeepPolicy
from varuna_runtime.worker.signals import Drain

_LONGEST_PAUSE_S = 300.0
_HOLD_S = 3.0  # so long no other copy is begun for a buddy that has just failed
_HOLD_PAUSES_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)


class Buffer(Protocol):
    """Memory for one copy; see `vault.client.Buffer`."""

    memory: memoryview

    def begin(self) -> None:
        """It is no copy from now on."""
        ...

    def seal(self, record: CopyRecord) -> None:
        """It is complete."""
        ...


class OwnMemory(Protocol):
    """The vault of this node; see `vault.client.LocalVault`."""

    def allocate(self, *, generation: int, rank: int, num_bytes: int) -> "tuple[Buffer, Buffer] | None":
        """Return two buffers; None over the limit."""
        ...

    def retire(self, before_generation: int) -> None:
        """Drop copies of older generations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose copies these are."""

    job: str
    generation: int
    rank: int
    replica: int
    replicas: int
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Tensors over the memory of one buffer."""

    places: tuple[CopiedTensor, ...]
    tensors: tuple[Tensor, ...]


class Engine(Protocol):
    """What is copied; see `engine.RankEngine`."""

    @property
    def step(self) -> int:
        """Committed steps."""
        ...

    def state(self) -> EngineState:
        """Live tensors and what goes with them."""
        ...

    def before_change(self, wait: Callable[[], object]) -> None:
        """Have `wait` called before tensors change."""
        ...


class Keeper:
    """The copies of one rank. All ranks begin them after the same steps."""

    def __init__(
        self,
        engine: Engine,
        vault: OwnMemory | None,
        buddies: Sequence[Line],
        owner: Owner,
        *,
        clock: Callable[[], float],
        busy: Callable[[], float],
        on_made: Callable[[], object] = lambda: None,
        reopen: Callable[[], OwnMemory | None] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Without a vault nothing is kept.

        `busy` is the time that this thread had a processor; `on_made` is called, in another thread, whenever
        `made_step` changed; `reopen` is how to reach the vault anew once it was lost.
        """
        self._engine, self._vault, self._buddies, self._owner = engine, vault, buddies, owner
        self._clock, self._busy, self._on_made, self._pause = clock, busy, on_made, pause
        self._reopen = reopen
        self._reopen_at_s: float | None = None
        self._reopen_pause_s = RETRY_S  # doubles: one that is there but stands still costs time
        if vault is None:
            self._reopen_later()
        self._policy = KeepPolicy(last_s=clock())
        self._targets: dict[int, Targets] = {}  # by buffer
        self._full_vault: OwnMemory | None = None  # it had no room beside what older generations left
        self._spare: list[Buffer] = []  # the next to be filled first
        self._num_bytes = -1
        self._changed = threading.Condition()  # guards everything below
        self._number = 0  # of the copy under way; another one once it was given up
        self._is_busy = self._is_copying = False
        self._made_step = -1
        self._is_held = False  # the copy under way
        self._is_sealing = False  # it was released when all bytes were there
        self._kept_step = -1
        self._whole_step = -1  # of which there are copies, too

    @property
    def is_able(self) -> bool:
        """Whether there is a vault that takes copies."""
        return self._vault is not None

    @property
    def says(self) -> Keeping:
        """What to vote; a vault that was lost is looked for again first, now and then."""
        self._look_for_vault()
        with self._changed:
            is_only_held = self._is_held and not self._is_copying and not self._buddies
            # Rank 0 is the one to tell: its copy is whole before any rank lets go of the one before.
            is_only_held = is_only_held and self._owner.rank > 0
            is_able, is_busy, kept = self.is_able, self._is_busy and not is_only_held, self._kept_step
        return Keeping(
            wants=is_able and not is_busy and self._policy.is_due(self._clock()),
            kept=kept if is_able else -1,
            can_drain=Drain.KEPT if is_able else Drain.DURABLE,
        )

    @property
    def made_step(self) -> int:
        """The newest step that is copied here; a copy that is held counts, too. -1: none."""
        with self._changed:
            return self._made_step

    def release(self) -> None:
        """Let a copy that was begun as `held` count."""
        with self._changed:
            if self._is_held:
                self._is_sealing = self._is_busy and not self._is_copying
                self._is_held, self._is_copying = False, self._is_busy
                self._changed.notify_all()

    def _look_for_vault(self) -> None:
        if self._reopen_at_s is None or self._clock() < self._reopen_at_s:
            return
        vault = self._reopen()
        if vault is None:
            self._reopen_later()
            return
        print("varuna: copies are kept here again", flush=True)  # noqa: T201
        self._num_bytes, self._reopen_at_s = -1, None
        with self._changed:
            self._vault = vault

    def _reopen_later(self) -> None:
        self._reopen_at_s = self._clock() + self._reopen_pause_s
        self._reopen_pause_s = min(2 * self._reopen_pause_s, _LONGEST_PAUSE_S)

    def keeps(self, step: int) -> bool:
        """Return whether the step's copies are complete, here and at every buddy."""
        with self._changed:
            return self.is_able and self._whole_step == step

    def try_all_buddies(self) -> None:
        """Ask also those that failed a moment ago with the next copy."""
        for line in self._buddies:
            line.try_at_once()

    def starts(self) -> None:
        """Initial weights need no copy: every rank can make them again."""
        with self._changed:
            self._kept_step = self._engine.step

    def begin(self, state: EngineState | None = None, *, is_held: bool = False) -> None:
        """Copy the committed steps behind the training; no copy may be under way, but one just released.

        `state` is what they came to, where the next step has begun. A copy that is held is none before
        `release`, and never if this process ends first.
        """
        self.wait_sealed()
        if self._vault is None:
            return
        began_s = self._busy()  # a crowded machine makes no copy dearer
        state = state or self._engine.state()
        places = arranged(state.segments)
        buffer = self._next_buffer(self._vault, size_of(places))
        if buffer is None:
            return
        with self._changed:
            assert not self._is_busy, "the last copy is under way"
            self._number += 1
            number = self._number
            self._is_busy, self._is_copying, self._is_sealing = True, True, False
            self._is_held = is_held
        self._policy.begun(self._clock())
        record = self._record(places, state.trainer, state.segments)
        sources = (state.segments[place.segment][place.name] for place in places)
        pairs = list(zip(self._targets_in(buffer, places), sources, strict=True))
        staging = stage(
            pairs, lambda: self._complete(number, buffer, record), name=f"keep-{self._owner.rank}"
        )
        called_s = self._busy() - began_s

        def wait() -> None:
            waiting_s = self._clock()
            try:
                staging.wait()
            finally:
                self._policy.learnt(called_s + self._clock() - waiting_s)

        self._engine.before_change(wait)

    def wait_sealed(self) -> None:
        """Wait for a copy that was released and has no way to go but into this node's vault: a moment."""
        with self._changed:
            if not self._buddies:
                self._changed.wait_for(lambda: not self._is_busy or not self._is_sealing)

    def wait_copied(self, timeout_s: float) -> bool:
        """Return whether no copy is being made on this node any more; buddies may be behind."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_copying, timeout_s)

    def wait_done(self, timeout_s: float) -> bool:
        """Return whether the last copy is made and was offered to every buddy."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy, timeout_s)

    def retire(self) -> None:
        """Drop what older generations left on this node; a vault that was full is tried once more."""
        vault = self._vault or self._full_vault
        if vault is None:
            return
        try:
            vault.retire(self._owner.generation)
        except FAULTS as err:
            self._give_up(err)
            return
        with self._changed:
            self._vault, self._full_vault = vault, None

    def _next_buffer(self, vault: OwnMemory, num_bytes: int) -> Buffer | None:
        """Return memory that may be written to; None: the vault gives none, and nothing is kept any more."""
        try:
            if num_bytes > self._num_bytes:
                pair = vault.allocate(
                    generation=self._owner.generation, rank=self._owner.rank, num_bytes=num_bytes
                )
                if pair is None:
                    self._full_vault = vault
                    raise VaultRefused("over the limit of this node's vault")
                self._spare, self._num_bytes = list(pair), num_bytes
                self._targets.clear()
            self._spare.append(self._spare.pop(0))
            self._spare[-1].begin()
        except FAULTS as err:
            self._give_up(err)
            return None
        return self._spare[-1]

    def _targets_in(self, buffer: Buffer, places: tuple[CopiedTensor, ...]) -> tuple[Tensor, ...]:
        """Return tensors over the buffer; they are made once, as long as nothing about the state changes."""
        known = self._targets.get(id(buffer))
        if known is None or known.places != places:
            tensors = tuple(tensor_over(buffer.memory, place) for place in places)
            known = self._targets[id(buffer)] = Targets(places=places, tensors=tensors)
        return known.tensors

    def _record(
        self,
        places: tuple[CopiedTensor, ...],
        trainer: TrainerState,
        segments: Mapping[int, Mapping[str, Tensor]],
    ) -> CopyRecord:
        owner = self._owner
        copy = Copy(
            job=owner.job,
            version=Version(step=trainer.step, generation=owner.generation),
            rank=owner.rank,
            replica=owner.replica,
            replicas=owner.replicas,
            segments=tuple(sorted(segments)),
            is_shared=owner.is_shared,
            num_bytes=size_of(places),
        )
        return CopyRecord(copy=copy, tensors=places, trainer=trainer)

    def _complete(self, number: int, buffer: Buffer, record: CopyRecord) -> None:
        """In the copying thread, once all bytes are there; what was given up meanwhile changes nothing."""
        step = record.copy.version.step
        self._is_made(number, step, is_held=True)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_held or number != self._number)
            if number != self._number:
                return
        try:
            buffer.seal(record)
        except FAULTS as err:
            self._give_up(err, number)
            return
        except Exception as err:  # the thread's boundary: else others would wait for this copy for ever
            self._give_up(VaultLost(f"{type(err).__name__}: {err}"), number)
            return
        self._is_made(number, step, is_held=False)
        is_whole = self._hand_out(record, buffer.memory[: record.copy.num_bytes])
        with self._changed:
            if number == self._number:
                self._kept_step = self._whole_step = step if is_whole else -1
                self._is_busy = False
                self._changed.notify_all()

    def _is_made(self, number: int, step: int, *, is_held: bool) -> None:
        """All bytes are there; with `is_held` only if the copy is."""
        with self._changed:
            if number != self._number or is_held is not self._is_held:
                return
            self._made_step, self._is_copying = step, False
            self._changed.notify_all()
        self._on_made()

    def _hand_out(self, record: CopyRecord, memory: memoryview) -> bool:
        """Return whether every buddy keeps the copy.

        Until this returns no rank begins another one, so that the copy before stays whole on all of them. A
        buddy that failed only now, with its connection perhaps, is asked again for a moment: else other
        ranks would drop their share of the only version that survives the loss of this node.
        """
        until_s = self._clock() + _HOLD_S
        well = [line for line in self._buddies if not line.is_failing]
        behind = [line for line in self._buddies if not line.store(record, memory)]
        for pause_s in _HOLD_PAUSES_S:
            again = [line for line in behind if line in well and not line.is_refused]
            if not again or self._clock() >= until_s:
                break
            self._pause(pause_s)
            for line in again:
                line.try_at_once()
                if line.store(record, memory):
                    behind.remove(line)
        return not behind

    def _give_up(self, reason: VarunaError, number: int | None = None) -> None:
        """Keep nothing from now on, unless the reason is of a copy that was given up before."""
        with self._changed:
            if number not in (None, self._number):
                return
            self._number += 1
            self._vault, self._made_step, self._kept_step, self._whole_step = None, -1, -1, -1
            self._is_busy = self._is_copying = self._is_held = False
            self._changed.notify_all()
        print(f"varuna: no copies are kept here: {reason}", flush=True)  # noqa: T201
        if isinstance(reason, VaultLost):
            self._reopen_later()
