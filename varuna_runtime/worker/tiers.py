"""Copies as a source of a rank's state: the vault of its own node first, then those of other nodes.

Bytes of one version are never mixed with those of another. Which version is loaded is decided elsewhere.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from torch import Tensor

from varuna_runtime.spec.copies import CopiedTensor, Copy, CopyRecord, Vault, Version, loadable
from varuna_runtime.spec.errors import CopyGone, VarunaError, VaultLost, VaultRefused
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.vault.client import LocalVault, RemoteVault
from varuna_runtime.worker import clock
from varuna_runtime.worker.copy_layout import tensor_over

_CHUNK_BYTES = 4 << 20
_LOST = (VaultLost, VaultRefused, CopyGone)
Load = Callable[[Iterable[Mapping[str, Tensor]], TrainerState], None]


class Overwritten(VarunaError):
    """A copy changed while it was read: what was read counts for nothing."""

    def __init__(self, donor: "Donor", copy: Copy, reason: str) -> None:
        self.donor = donor
        self.copy = copy
        super().__init__(reason)


class Reading(Protocol):
    """One copy, open."""

    record: CopyRecord

    def tensors(self, places: Sequence[CopiedTensor]) -> Iterator[tuple[CopiedTensor, Tensor]]:
        """Yield each tensor, valid until the next one is asked for; VaultLost, CopyGone."""
        ...


class Donor(Protocol):
    """A vault that may hold copies."""

    def inventory(self) -> tuple[Copy, ...]:
        """Return the complete copies of the job that are there; VaultLost, VaultRefused."""
        ...

    def reading(self, copy: Copy) -> AbstractContextManager[Reading]:
        """Open a copy; VaultLost, VaultRefused, CopyGone, and Overwritten at the end."""
        ...


class OwnVault:
    """The vault of this node: its memory is read in place."""

    def __init__(self, vault: LocalVault) -> None:
        self._vault = vault

    def inventory(self) -> tuple[Copy, ...]:
        """See Donor."""
        return self._vault.inventory()

    @contextmanager
    def reading(self, copy: Copy) -> Iterator["Reading"]:
        """See Donor."""
        borrowed = self._vault.borrow(copy)
        try:
            with borrowed:
                yield _InPlace(borrowed.record, borrowed.memory)
        except (CopyGone, VaultLost) as err:  # nobody can say that it stayed what it was
            raise Overwritten(self, copy, str(err)) from err


class _InPlace:
    def __init__(self, record: CopyRecord, memory: memoryview) -> None:
        self.record = record
        self._memory = memory

    def tensors(self, places: Sequence[CopiedTensor]) -> Iterator[tuple[CopiedTensor, Tensor]]:
        for place in places:
            yield place, _tensor(self._memory, place, 0)


class OtherVault:
    """The vault of another node: bytes come in chunks, each checked, into memory that is used again."""

    def __init__(self, vault: Vault, *, job: str, secret: str, timeout_s: float, patience_s: float) -> None:
        """`patience_s` is for what it holds: who asks for that decides how long it is waited for."""
        self._vault = vault
        self._patience_s = patience_s
        self._job = job
        self._secret = secret
        self._timeout_s = timeout_s
        self._connection: RemoteVault | None = None

    def inventory(self) -> tuple[Copy, ...]:
        """See Donor."""
        copies = self._connected().inventory()
        self._connected().wait_at_most(self._timeout_s)
        return copies

    @contextmanager
    def reading(self, copy: Copy) -> Iterator["Reading"]:
        """See Donor."""
        connection = self._connected()
        yield _InChunks(connection, connection.record(copy))

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> RemoteVault:
        if self._connection is None:
            self._connection = RemoteVault(
                self._vault, job=self._job, secret=self._secret, timeout_s=self._patience_s
            )
        return self._connection


class _InChunks:
    def __init__(self, connection: RemoteVault, record: CopyRecord) -> None:
        self.record = record
        self._connection = connection
        self._chunk = bytearray()

    def tensors(self, places: Sequence[CopiedTensor]) -> Iterator[tuple[CopiedTensor, Tensor]]:
        for run in runs(places, _CHUNK_BYTES):
            start, stop = run[0].offset, run[-1].offset + run[-1].num_bytes
            if len(self._chunk) < stop - start:
                self._chunk = bytearray(stop - start)
            memory = memoryview(self._chunk)[: stop - start]
            self._connection.fetch(self.record.copy, start, memory)
            for place in run:
                yield place, _tensor(memory, place, start)


def runs(places: Sequence[CopiedTensor], chunk_bytes: int) -> Iterator[list[CopiedTensor]]:
    """Yield neighbours, in order of offset, that fit a chunk together; a tensor is never split."""
    run: list[CopiedTensor] = []
    for place in sorted(places, key=lambda place: place.offset):
        gap = place.offset - (run[-1].offset + run[-1].num_bytes) if run else 0
        if run and (gap >= 64 or place.offset + place.num_bytes - run[0].offset > chunk_bytes):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


class Copies:
    """What all vaults together hold of the segments that one rank needs."""

    def __init__(
        self, own: Donor | None, others: Sequence[Donor], needed: Iterable[int], *, first: int = 0
    ) -> None:
        """The own vault comes first; `first` turns the order of the others, to spread ranks over them."""
        turn = first % max(1, len(others))
        near = () if own is None else (own,)
        self._donors = (*near, *others[turn:], *others[:turn])
        self._needed = tuple(needed)
        self._asking: list[threading.Thread] = []
        self._found: dict[int, tuple[Copy, ...]] = {}  # what donors said, by donor; filled by those threads
        self._held: dict[int, tuple[Copy, ...]] = {}  # of that, what is still relied on

    def look(self, within_s: float) -> None:
        """Ask all donors at once; who does not answer in time has nothing, unless `look_again` gives more."""
        for number, donor in enumerate(self._donors):
            name = f"inventory-{number}"
            thread = threading.Thread(target=self._ask, args=(number, donor), name=name, daemon=True)
            self._asking.append(thread)
            thread.start()
        self._hear(within_s)

    def look_again(self, within_s: float, floor: int) -> None:
        """Give those who said nothing more time, if no version of `floor` steps or more is loadable."""
        if not any(version.step >= floor for version in self.versions):
            self._hear(within_s)

    def _ask(self, number: int, donor: Donor) -> None:
        try:
            self._found[number] = donor.inventory()
        except _LOST as err:
            print(f"varuna: no copies from there: {err}", flush=True)  # noqa: T201

    def _hear(self, within_s: float) -> None:
        until_s = clock.now_s() + within_s
        for thread in self._asking:
            thread.join(max(0.0, until_s - clock.now_s()))
        self._held = dict(self._found)

    @property
    def versions(self) -> tuple[Version, ...]:
        """Versions that can be loaded, newest first."""
        return loadable((copy for copies in self._held.values() for copy in copies), self._needed)

    def load(self, version: Version, load: Load) -> None:
        """Give `load` every tensor of the needed segments once; CopyGone when no donor is left for one."""
        while version in self.versions:
            try:
                with ExitStack() as stack:
                    opened = _Opened(self._donors, stack)
                    load(self._pieces(version, opened), self._trainer(version, opened))
            except Overwritten as err:  # what was loaded counts for nothing: again from the start
                self._strike(self._donors.index(err.donor), err.copy, err)
            else:
                return
        raise CopyGone(
            f"no vault holds step {version.step} of generation {version.generation} whole any more"
        )

    def _trainer(self, version: Version, opened: "_Opened") -> TrainerState:
        for donor, copy in self._holders(version):
            try:
                return opened.reading(donor, copy).record.trainer
            except _LOST as err:
                self._strike(donor, copy, err)
        raise CopyGone(f"no vault holds anything of step {version.step} any more")

    def _pieces(self, version: Version, opened: "_Opened") -> Iterator[Mapping[str, Tensor]]:
        for segment in self._needed:
            seen: set[str] = set()
            parts = {copy.replica for _, copy in self._holders(version, segment) if copy.is_shared}
            for part in sorted(parts) or (None,):
                yield from self._part(version, segment, part, seen, opened)

    def _part(
        self, version: Version, segment: int, part: int | None, seen: set[str], opened: "_Opened"
    ) -> Iterator[Mapping[str, Tensor]]:
        """Yield what one replica's copy holds of a segment, or any replica's where `part` is None."""
        for donor, copy in self._holders(version, segment):
            if part is not None and copy.replica != part:
                continue
            try:
                reading = opened.reading(donor, copy)
                places = [p for p in reading.record.tensors if p.segment == segment and p.name not in seen]
                for place, tensor in reading.tensors(places):
                    yield {place.name: tensor}
                    seen.add(place.name)
            except _LOST as err:
                self._strike(donor, copy, err)
            else:
                return
        raise CopyGone(f"no vault holds segment {segment} of step {version.step} any more")

    def _holders(self, version: Version, segment: int | None = None) -> list[tuple[int, Copy]]:
        return [
            (donor, copy)
            for donor, copies in sorted(self._held.items())
            for copy in copies
            if copy.version == version and (segment is None or segment in copy.segments)
        ]

    def _strike(self, donor: int, copy: Copy, err: VarunaError) -> None:
        """Ask this donor for this copy no more; for none, if it does not answer."""
        if copy in self._held[donor]:
            print(f"varuna: another source for step {copy.version.step}: {err}", flush=True)  # noqa: T201
            is_lost = isinstance(err, VaultLost)
            self._held[donor] = tuple(c for c in self._held[donor] if c != copy and not is_lost)


class _Opened:
    """The copies that one load has open."""

    def __init__(self, donors: Sequence[Donor], stack: ExitStack) -> None:
        self._donors = donors
        self._stack = stack
        self._readings: dict[tuple[int, Copy], Reading] = {}

    def reading(self, donor: int, copy: Copy) -> Reading:
        if (donor, copy) not in self._readings:
            self._readings[donor, copy] = self._stack.enter_context(self._donors[donor].reading(copy))
        return self._readings[donor, copy]


def _tensor(memory: memoryview, place: CopiedTensor, start: int) -> Tensor:
    try:
        return tensor_over(memory, place, start=start)
    except (ValueError, RuntimeError) as err:
        raise CopyGone(f"a copy that makes no sense: {err}") from err
