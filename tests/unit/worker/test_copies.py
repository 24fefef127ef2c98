"""Copies kept at one layout and loaded at another: the bits go on as if nothing had happened."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support import toys
from tests.support.copies import KeptFleet, MemoryVault, load
from tests.support.fleet import Fleet, assert_equal_bits
from varuna_runtime.spec.copies import Copy, Version
from varuna_runtime.spec.errors import CopyGone
from varuna_runtime.spec.job import Precision
from varuna_runtime.worker.engine import Keeping, RankEngine
from varuna_runtime.worker.evaluation import Evaluation
from varuna_runtime.worker.tiers import Copies
from varuna_runtime.worker.training import Training


class Stream:
    """Numbers in order, with the place as the cursor."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def open(self, cursor: int | None) -> Any:
        place = cursor or 0
        while True:
            yield self._rows[place % len(self._rows)], place + 1
            place += 1

    def __len__(self) -> int:
        return len(self._rows)


def streamed() -> Training:
    training = toys.mlp_training()
    return replace(training, dataset=Stream(training.dataset), shuffle=False)


def evaluated() -> Training:
    return toys.mlp_training(evaluation=Evaluation(dataset=toys.regression_rows(7), every_steps=1))


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scheduler": (toys.mlp_training, {}),
    "tied": (toys.tied_training, {}),
    "sharded": (toys.tied_training, {"shard_optimizer": True}),
    "offload": (toys.tied_training, {"offload_optimizer": True}),
    "sharded and offload": (toys.mlp_training, {"shard_optimizer": True, "offload_optimizer": True}),
    "buffers": (toys.batch_norm_training, {"micro_batch_size": 3}),
    "fp16": (toys.mlp_training, {"precision": Precision.FP16}),
    "evaluations": (evaluated, {}),
    "stream": (streamed, {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("before", "after"), [("2x2", "1x1"), ("1x2", "2x1"), ("2x1", "1x3"), ("1x3", "2x2")]
)
def test_a_training_goes_on_from_copies_at_another_layout_with_equal_bits(
    case: str, before: str, after: str
) -> None:
    make, options = CASES[case]
    kept = Fleet(make(), before, **options)
    vaults = [MemoryVault() for _ in kept.engines]
    KeptFleet(kept, vaults).train(2)
    resumed = Fleet(make(), after, **options)
    resumed.engines = [
        RankEngine(
            make(),
            resumed.settings,
            resumed.model,
            resumed.plan,
            resumed.network.link(rank),
            materialise=resumed.model.materialise_blank,
        )
        for rank in range(len(resumed.engines))
    ]
    load(resumed, vaults)
    assert_equal_bits(resumed.snapshot(), kept.snapshot())
    for engine in kept.engines:
        engine.keep_by(Keeping)  # of the steps below only the bits are of interest
    resumed_bits, kept_bits = resumed.train(2), kept.train(2)
    assert_equal_bits(resumed_bits, kept_bits)


def test_a_step_abandoned_after_a_copy_began_is_not_in_it() -> None:
    fleet = Fleet(toys.tied_training(), "2x2")
    vaults = [MemoryVault() for _ in fleet.engines]
    before = KeptFleet(fleet, vaults).train(1)
    fleet.abandon_step(30)
    resumed = Fleet(toys.tied_training(), "1x2")
    load(resumed, vaults)
    assert_equal_bits(replace(before, steps=()), resumed.snapshot())


def kept_by_two(num_steps: int = 2) -> tuple[Fleet, list[MemoryVault], list[MemoryVault]]:
    """Each rank's copy in two vaults."""
    fleet = Fleet(toys.tied_training(), "2x1")
    owns, buddies = [[MemoryVault(), MemoryVault()] for _ in range(2)]
    KeptFleet(fleet, owns, buddies).train(num_steps)
    return fleet, owns, buddies


@pytest.mark.parametrize("lost_after", range(0, 24, 3))
def test_a_donor_that_dies_in_the_middle_is_followed_by_the_next_with_equal_bits(lost_after: int) -> None:
    fleet, owns, buddies = kept_by_two()
    owns[0].lost_after = lost_after
    resumed = Fleet(toys.tied_training(), "1x1")
    load(resumed, [owns[0], owns[1], buddies[0]])
    assert_equal_bits(resumed.snapshot(), fleet.snapshot())


def test_without_a_donor_left_for_a_segment_the_version_is_gone() -> None:
    _, owns, _ = kept_by_two()
    owns[0].lost_after = 3
    (engine,) = Fleet(toys.tied_training(), "1x1").engines
    copies = Copies(owns[0], owns[1:], engine.needed_segments)
    copies.look(60.0)
    assert copies.versions == (Version(step=2, generation=1), Version(step=1, generation=1))
    with pytest.raises(CopyGone):
        copies.load(copies.versions[0], engine.load_pieces)
    assert copies.versions == ()


def test_a_vault_that_does_not_answer_has_nothing() -> None:
    _, owns, _ = kept_by_two()
    owns[1].is_down = True
    copies = Copies(owns[0], owns[1:], [0])
    copies.look(60.0)
    assert len(copies.versions) == 2
    (engine,) = Fleet(toys.tied_training(), "1x1").engines
    all_segments = Copies(owns[0], owns[1:], engine.needed_segments)
    all_segments.look(60.0)
    assert all_segments.versions == ()


class SlowVault(MemoryVault):
    """Answers once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()

    def inventory(self) -> tuple[Copy, ...]:
        assert self.is_free.wait(60.0)
        return super().inventory()


def test_a_slow_vault_is_waited_for_where_steps_would_be_lost_without_it() -> None:
    vault = SlowVault()
    fleet = Fleet(toys.mlp_training(), "1x1")
    KeptFleet(fleet, [vault]).train(2)
    copies = Copies(vault, [], fleet.engines[0].needed_segments)
    copies.look(0.0)
    assert copies.versions == ()
    vault.is_free.set()
    copies.look_again(60.0, floor=2)
    assert copies.versions[0].step == 2


def test_a_slow_vault_is_not_waited_for_where_others_have_what_is_new_enough() -> None:
    slow, vault = SlowVault(), MemoryVault()
    fleet = Fleet(toys.mlp_training(), "1x1")
    KeptFleet(fleet, [vault]).train(2)
    copies = Copies(vault, [slow], fleet.engines[0].needed_segments)
    copies.look(0.5)
    copies.look_again(60.0, floor=2)
    assert (len(copies.versions), slow.is_free.is_set()) == (2, False)
    slow.is_free.set()


def test_copies_of_a_training_without_optimizer_state_yet_grow_with_it() -> None:
    fleet = Fleet(toys.mlp_training(), "1x1")
    vault = MemoryVault()
    kept = KeptFleet(fleet, [vault])
    kept.copying[0].keep_last()
    kept.wait()
    kept.train(1)
    assert {copy.version.step for copy in vault.inventory()} == {0, 1}
    assert torch.is_tensor(fleet.engines[0].state().segments[0]["optim:0.weight:exp_avg"])
