"""One rank's ways to copies: the vault of its node, those of others, and its buddies."""

from collections.abc import Callable
from functools import partial

from varuna_runtime.spec.copies import Vault
from varuna_runtime.spec.errors import VaultLost
from varuna_runtime.vault.client import LocalVault, RemoteVault
from varuna_runtime.worker import clock
from varuna_runtime.worker.buddies import Line
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.keeping import Keeper, Owner
from varuna_runtime.worker.ranks import RankOrder
from varuna_runtime.worker.starting import LOOK_AGAIN_S, LOOK_S
from varuna_runtime.worker.tiers import Copies, OtherVault, OwnVault

_PUSH_S = 2.0  # a buddy that is silent for so long is tried again later


class Vaults:
    """Opened once by a rank that has to do with copies."""

    def __init__(self, order: RankOrder) -> None:
        self._order = order
        self._own = _opened(order)
        if self._own is None and order.vault_socket:
            print("varuna: no copies are kept here: the vault of this node cannot be reached", flush=True)  # noqa: T201
        self._others = [
            OtherVault(
                vault,
                job=order.job,
                secret=order.copies_secret,
                timeout_s=LOOK_S,
                patience_s=LOOK_S + LOOK_AGAIN_S,
            )
            for vault in order.vaults
        ]

    def copies(self, needed: tuple[int, ...]) -> Copies:
        """Return the copies of these segments; none, not even here, where the manager names no vaults."""
        own = OwnVault(self._own) if self._own is not None and self._order.may_have_copies else None
        return Copies(own, self._others, needed, first=self._order.rank)

    def keeper(self, engine: RankEngine, *, on_made: Callable[[], object]) -> Keeper:
        """Return what keeps the rank's own copies."""
        layout = self._order.plan.layout
        owner = Owner(
            job=self._order.job,
            generation=self._order.generation,
            rank=self._order.rank,
            replica=layout.replica_of(self._order.rank),
            replicas=layout.replicas,
            is_shared=engine.is_shared,
        )
        lines = [Line(v.node, partial(self._connect, v), clock.now_s) for v in self._order.buddies]
        return Keeper(
            engine,
            self._own,
            lines,
            owner,
            clock=clock.now_s,
            busy=clock.busy_s,
            on_made=on_made,
            reopen=partial(_opened, self._order),
        )

    def stop_reading(self) -> None:
        """Nothing is loaded any more."""
        for other in self._others:
            other.close()

    def _connect(self, vault: Vault) -> RemoteVault:
        return RemoteVault(vault, job=self._order.job, secret=self._order.copies_secret, timeout_s=_PUSH_S)


def _opened(order: RankOrder) -> LocalVault | None:
    try:
        return LocalVault(order.vault_socket, order.job) if order.vault_socket else None
    except VaultLost:
        return None
