"""A rank's copies through real vaults: kept, sent to a buddy, loaded from this node and from others."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
from torch import Tensor

from tests.support import toys
from tests.support.copies import KeptFleet, load
from tests.support.fleet import Fleet, assert_equal_bits
from tests.support.relay import Change, at_byte, relay
from tests.support.vaults import SECRET, VaultProcess, vault
from varuna_runtime.spec.copies import Vault
from varuna_runtime.spec.errors import CopyGone
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.worker.tiers import Copies, OtherVault, OwnVault

REACHED: Any = {"job": "j", "secret": SECRET, "timeout_s": 10.0, "patience_s": 10.0}


@pytest.fixture
def vaults() -> Iterator[list[VaultProcess]]:
    with vault() as first, vault() as second:
        yield [first, second]


@pytest.fixture
def other() -> Iterator[Callable[[Vault], OtherVault]]:
    with ExitStack() as stack:

        def opened(address: Vault) -> OtherVault:
            return stack.enter_context(closing(OtherVault(address, **REACHED)))

        yield opened


def keep(vaults: list[VaultProcess], *, is_sharded: bool) -> Fleet:
    """Train two steps; then the ranks' processes are gone."""
    fleet = Fleet(toys.tied_training(), "1x2" if is_sharded else "2x1", shard_optimizer=is_sharded)
    with ExitStack() as stack:
        owns = [stack.enter_context(closing(process.local())) for process in vaults]
        buddies = [stack.enter_context(process.remote()) for process in reversed(vaults)]
        KeptFleet(fleet, owns, buddies).train(2)
    return fleet


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("survivors", [(0, 1), (0,), (1,)])
def test_any_vault_that_is_left_gives_the_bits_back(
    vaults: list[VaultProcess],
    other: Callable[[Vault], OtherVault],
    survivors: tuple[int, ...],
    *,
    is_sharded: bool,
) -> None:
    fleet = keep(vaults, is_sharded=is_sharded)
    for number in {0, 1} - set(survivors):
        vaults[number].kill()
    own, *others = (vaults[number] for number in survivors)
    resumed = Fleet(toys.tied_training(), "1x1")
    with closing(own.local()) as local:
        load(resumed, [OwnVault(local), *(other(process.address) for process in others)])
    assert_equal_bits(resumed.snapshot(), fleet.snapshot())


def test_from_another_node_alone_the_bits_are_the_same(
    vaults: list[VaultProcess], other: Callable[[Vault], OtherVault]
) -> None:
    fleet = keep(vaults, is_sharded=False)
    resumed = Fleet(toys.tied_training(), "2x2")
    load(resumed, [other(vaults[1].address)])
    assert_equal_bits(resumed.snapshot(), fleet.snapshot())


def test_a_vault_that_dies_while_its_copy_is_read_is_followed_by_one_that_has_the_same_copy(
    vaults: list[VaultProcess], other: Callable[[Vault], OtherVault]
) -> None:
    fleet = keep(vaults, is_sharded=False)
    resumed = Fleet(toys.tied_training(), "1x1")
    (engine,) = resumed.engines

    def load_and_kill(pieces: Iterable[Mapping[str, Tensor]], trainer: TrainerState) -> None:
        engine.load_pieces(pieces, trainer)
        vaults[0].kill()

    with closing(vaults[0].local()) as local:
        copies = Copies(OwnVault(local), [other(vaults[1].address)], engine.needed_segments)
        copies.look(10.0)
        copies.load(copies.versions[0], load_and_kill)
    assert_equal_bits(resumed.snapshot(), fleet.snapshot())


def flip(passing: bytearray, at: int) -> None:
    passing[at] ^= 1


@pytest.mark.parametrize("before_end", [1000, 3000, 9000])
def test_a_byte_flipped_on_the_way_is_noticed_and_another_donor_gives_the_bits(
    vaults: list[VaultProcess], other: Callable[[Vault], OtherVault], before_end: int
) -> None:
    fleet = keep(vaults, is_sharded=False)
    num_passed = [0]

    def count(passing: bytes) -> bytes:
        num_passed[0] += len(passing)
        return passing

    assert loaded_through(vaults, count) is not None
    damage = at_byte(num_passed[0] - before_end, flip)
    assert loaded_through(vaults, damage) is None, "it was the only donor"
    damage = at_byte(num_passed[0] - before_end, flip)
    resumed = loaded_through(vaults, damage, other(vaults[1].address))
    assert resumed is not None
    assert_equal_bits(resumed.snapshot(), fleet.snapshot())


def loaded_through(vaults: list[VaultProcess], change: Change, *others: OtherVault) -> Fleet | None:
    """Load from the first vault over a wire that changes what comes, or from others; None: nobody had it."""
    fleet = Fleet(toys.tied_training(), "1x1")
    (engine,) = fleet.engines
    with relay(vaults[0].address.port, back=change) as port:
        damaged = Vault(node="n", host="127.0.0.1", port=port)
        wired = OtherVault(damaged, **REACHED)
        copies = Copies(None, [wired, *others], engine.needed_segments)
        copies.look(10.0)
        try:
            copies.load(copies.versions[0], engine.load_pieces)
        except CopyGone:
            return None
        finally:
            wired.close()
    return fleet
