"""The peer: schedules of torch.distributed.pipelining over gloo, with every work-around they have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, schedules

from benchmarks.testbed import Place

GPIPE = "torch GPipe"
ONE_F_ONE_B = "torch 1F1B"
ASYNC_1F1B = "torch 1F1B order, sends not waited for"
INTERLEAVED = "torch Interleaved1F1B"
INTERLEAVED_ZB = "torch InterleavedZeroBubble"
ZBV = "torch ZBVZeroBubble"
ALL = (GPIPE, ONE_F_ONE_B, ASYNC_1F1B, INTERLEAVED, INTERLEAVED_ZB, ZBV)
ONE_STAGE = (GPIPE, ONE_F_ONE_B, ASYNC_1F1B)  # a rank
WHOLE_BACKWARD = (*ONE_STAGE, INTERLEAVED)

_SINGLE = {GPIPE: ScheduleGPipe, ONE_F_ONE_B: schedules.Schedule1F1B}
_TWO_STAGES = {
    INTERLEAVED: schedules.ScheduleInterleaved1F1B,
    INTERLEAVED_ZB: schedules.ScheduleInterleavedZeroBubble,
    ZBV: schedules.ScheduleZBVZeroBubble,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What both sides train."""

    modules: Callable[[int], Sequence[nn.Module]]  # number of stages -> the model in that many pieces
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor  # (num_micro * m, ...)
    targets: Tensor
    num_micro: int
    optimizer: Callable[[Any], torch.optim.Optimizer]


def runners(place: Place, subject: Subject, names: Sequence[str]) -> Mapping[str, Callable[[], object]]:
    """Return a training step for each schedule; the default process group exists."""
    return {name: _Step(place, subject, name) for name in names}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer that costs nothing to speak of."""
    return torch.optim.SGD(parameters, lr=0.01)


class _Step:
    """One schedule over stages of its own."""

    def __init__(self, place: Place, subject: Subject, name: str) -> None:
        per_rank = 2 if name in _TWO_STAGES else 1
        count = per_rank * place.size
        modules = subject.modules(count)
        indices = _indices(name, place)
        device = torch.device("cpu")
        self._stages = [PipelineStage(modules[i], i, count, device) for i in indices]
        self._parameters = [p for i in indices for p in modules[i].parameters()]
        self._schedule = _schedule(name, self._stages, subject)
        self._is_first, self._is_last = 0 in indices, count - 1 in indices
        self._subject = subject
        self._optimizer = subject.optimizer(self._parameters)

    def __call__(self) -> None:
        self._optimizer.zero_grad()
        given = (self._subject.inputs,) if self._is_first else ()
        target = self._subject.targets if self._is_last else None
        losses: list[Tensor] | None = [] if self._is_last else None
        self._schedule.step(*given, target=target, losses=losses, return_outputs=False)
        self._optimizer.step()


def _indices(name: str, place: Place) -> tuple[int, ...]:
    if name == ZBV:
        return place.rank, 2 * place.size - 1 - place.rank
    if name in _TWO_STAGES:
        return place.rank, place.rank + place.size
    return (place.rank,)


def _schedule(name: str, stages: list[PipelineStage], subject: Subject) -> schedules._PipelineSchedule:
    settings: dict[str, Any] = {
        "n_microbatches": subject.num_micro,
        "loss_fn": subject.loss,
        "scale_grads": False,
    }
    if name in _SINGLE:
        return _SINGLE[name](stages[0], **settings)
    if name in _TWO_STAGES:
        return _TWO_STAGES[name]([*stages], **settings)
    runtime = schedules._PipelineScheduleRuntime([*stages], **settings)  # type: ignore[no-untyped-call]
    runtime._prepare_schedule_with_comms(one_f_one_b_order(stages[0].num_stages, subject.num_micro))
    return runtime


def one_f_one_b_order(num_stages: int, num_micro: int) -> dict[int, list[schedules._Action | None]]:
    """Return the order of Schedule1F1B, whose own `_get_pipeline_order` is wrong in torch 2.13."""
    order: dict[int, list[schedules._Action | None]] = {}
    for stage in range(num_stages):
        warm_up = min(num_stages - stage, num_micro)
        todo = [(schedules.FORWARD, i) for i in range(warm_up)]
        for i in range(num_micro):
            todo.append((schedules.FULL_BACKWARD, i))
            if warm_up + i < num_micro:
                todo.append((schedules.FORWARD, warm_up + i))
        order[stage] = [schedules._Action(stage, kind, i) for kind, i in todo]
    return order
