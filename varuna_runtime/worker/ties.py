"""Tied parameters: one accumulator per use, combined in segment order, so that copies stay equal (E4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from varuna_runtime.spec.layout import Layout, Stage
from varuna_runtime.spec.model import TiedParameter, TiedUse
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import Stepping, receive


@dataclass(frozen=True, slots=True)
class UseSum:
    """The step's gradient sum of one use; `touched` is a bool tensor of one element."""

    value: Tensor
    touched: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TieExchange:
    """The ties one stage takes part in, and the stages it shares them with."""

    stage: int
    ties: tuple[TiedParameter, ...]
    stage_of_segment: tuple[int, ...]

    @property
    def partner_stages(self) -> tuple[int, ...]:
        """Other stages that use a parameter tied to one of ours, ascending."""
        return tuple(sorted({self._stage(use) for tie in self.ties for use in tie.uses} - {self.stage}))

    def combined(
        self, link: Link, layout: Layout, replica: int, sums: Mapping[TiedUse, UseSum]
    ) -> Stepping[dict[TiedParameter, UseSum]]:
        """Exchange the sums of our uses within the replica and return each tie's total."""
        known = dict(sums)
        for stage in self.partner_stages:
            mine = [sums[use] for tie in self._shared(stage) for use in self._uses(tie, self.stage)]
            message = tuple(t for use_sum in mine for t in (use_sum.value, use_sum.touched))
            link.send(layout.rank(stage=stage, replica=replica), "tied gradients", message)
        for stage in self.partner_stages:
            theirs = [use for tie in self._shared(stage) for use in self._uses(tie, stage)]
            message = yield from receive(link, layout.rank(stage=stage, replica=replica), "tied gradients")
            pairs = zip(message[::2], message[1::2], strict=True)
            known.update((use, UseSum(*pair)) for use, pair in zip(theirs, pairs, strict=True))
        return {tie: _in_segment_order([known[use] for use in tie.uses]) for tie in self.ties}

    def _shared(self, stage: int) -> list[TiedParameter]:
        return [tie for tie in self.ties if self._uses(tie, stage)]

    def _uses(self, tie: TiedParameter, stage: int) -> list[TiedUse]:
        return [use for use in tie.uses if self._stage(use) == stage]

    def _stage(self, use: TiedUse) -> int:
        return self.stage_of_segment[use.segment]


def tie_exchange(stage: int, stages: Sequence[Stage], tied: Sequence[TiedParameter]) -> TieExchange:
    """Return the ties of a stage under these cuts."""
    stage_of_segment = tuple(i for i, s in enumerate(stages) for _ in range(s.first, s.last))
    mine = [tie for tie in tied if any(stage_of_segment[use.segment] == stage for use in tie.uses)]
    return TieExchange(stage=stage, ties=tuple(mine), stage_of_segment=stage_of_segment)


def _in_segment_order(sums: Sequence[UseSum]) -> UseSum:
    # Out of place: the link may still be reading our own use.
    total = torch.add(sums[0].value, sums[1].value)
    touched = sums[0].touched | sums[1].touched
    for use_sum in sums[2:]:
        total.add_(use_sum.value)
        touched = touched | use_sum.touched
    return UseSum(total, touched)
