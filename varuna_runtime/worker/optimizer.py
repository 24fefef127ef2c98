"""The user's optimizer and scheduler on one stage, with state by parameter name; never talks to other ranks.

The factory sees every parameter of the model under its name, those of other stages on the meta device: so
groups and schedulers are the same on every rank and layout, and a foreign parameter costs nothing. Only then
are parameters exchanged for the share that this rank steps, or for twins on the host.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import ReduceLROnPlateau

from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput, ModelRefused
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.worker.plain import from_text, to_text
from varuna_runtime.worker.restoring import Restoring
from varuna_runtime.worker.shares import ELEMENTWISE, Holding, Offload, Shares

_NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


class StageOptimizer:
    """Applies one step's gradients to the parameters of a stage."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        optimizer: Callable[[Any], Any],
        scheduler: Callable[[Any], Any] | None,
    ) -> None:
        made = optimizer(list(named))
        if not isinstance(made, Optimizer):
            raise InvalidInput(f"optimizer returned {type(made).__name__}; wanted a torch.optim.Optimizer")
        if isinstance(made, LBFGS):
            raise InvalidInput(
                "optimizer: LBFGS evaluates the model several times a step and needs all parameters in one "
                "place; wanted one that steps on given gradients, each parameter by itself"
            )
        if isinstance(made, SparseAdam):
            raise InvalidInput(
                "optimizer: SparseAdam takes sparse gradients only, and sums over micro-batches are dense; "
                "wanted Adam, or any other one"
            )
        self._optimizer: Optimizer = made
        names = {id(p): name for name, p in named}
        every = [p for group in made.param_groups for p in group["params"]]
        if any(id(p) not in names for p in every):
            raise InvalidInput(
                "the optimizer holds a parameter that it was not given; "
                "build it from the named parameters passed to the factory"
            )
        self._group_names = [[names[id(p)] for p in group["params"]] for group in made.param_groups]
        self._holdings = [
            Holding(name=names[id(p)], shape=p.shape, place=p, stepped=p) for p in every if not p.is_meta
        ]
        self._offload: Offload | None = None
        # The foreach and fused kernels of a device may round differently: one choice for every layout.
        for settings in (made.defaults, *made.param_groups):
            settings.update({key: False for key in ("foreach", "fused") if key in settings})
        self._scheduler = _scheduler(scheduler, made)

    @property
    def is_elementwise(self) -> bool:
        """Whether a slice of a parameter is stepped as the whole would be, bit for bit."""
        return type(self._optimizer) in ELEMENTWISE

    @property
    def learning_rate(self) -> float:
        """Learning rate of the first group for the next step."""
        return float(self._optimizer.param_groups[0].get("lr", 0.0))

    def keep(self, shares: Shares) -> None:
        """Step and hold state of these shares only, of all trainable parameters; before the first step."""

        def share(held: Holding) -> Holding | None:
            if not held.place.requires_grad:
                return held
            if held.place not in shares:
                return None
            mine = shares[held.place]
            return replace(held, place=mine.place, stepped=mine.place, start=mine.piece.start, is_alone=True)

        self._exchange(share)

    def offload(self, host: Offload) -> None:
        """Hold state and step in memory of the host; before the first step."""
        self._offload = host

        def twin(held: Holding) -> Holding:
            if not held.place.requires_grad:
                return held
            return replace(held, stepped=nn.Parameter(host.twin(held.place.detach())))

        self._exchange(twin)
        self._refresh()

    def step(self, loss: float) -> None:
        """Apply the gradients in `.grad`, then advance the scheduler; `loss` is the step's mean."""
        self._fetch_gradients()
        self._optimizer.step()
        with torch.no_grad():
            for held in self._offloaded():
                held.place.copy_(held.stepped, non_blocking=True)
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None:
            self._scheduler.step()

    def tensors(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return the live state of these parameters as `optim:<name>:<key>`; see `spec.pieces`."""
        found: dict[str, Tensor] = {}
        for held in self._holdings:
            if held.name in names:
                for key, value in self._optimizer.state.get(held.stepped, {}).items():
                    found.update(_as_tensor(held, key, value))
        return found

    def groups_text(self) -> str:
        """Return the groups' hyperparameters and the names of their parameters as JSON."""
        groups = [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            | {"params": names}
            for group, names in zip(self._optimizer.param_groups, self._group_names, strict=True)
        ]
        return to_text(groups, of=f"the optimizer {type(self._optimizer).__name__}")

    def scheduler_text(self) -> str:
        """Return the scheduler's state as JSON; empty when there is none."""
        if self._scheduler is None:
            return ""
        return to_text(self._scheduler.state_dict(), of=f"the scheduler {type(self._scheduler).__name__}")

    def load(self, tensors: Mapping[str, Tensor], *, groups: str, scheduler: str) -> None:
        """Restore what the methods above returned, on any layout; tensors are copied."""
        restoring = self.restoring(groups=groups, scheduler=scheduler)
        restoring.take(tensors)
        restoring.finish()

    def restoring(self, *, groups: str, scheduler: str) -> Restoring:
        """Forget all state and restore hyperparameters; the state's tensors may follow piece by piece.

        A checkpoint without groups is of weights alone: the state that Adagrad makes at once stays.
        """
        try:
            self._load_groups(groups)
            self._load_scheduler(scheduler)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
            reason = "the checkpoint's groups or scheduler are not of the script's optimizer"
            raise CheckpointRefused(f"{reason}: {type(err).__name__}: {err}") from err
        if groups:
            self._optimizer.state.clear()
        return Restoring(self._optimizer, self._holdings, self._refresh)

    def _load_groups(self, text: str) -> None:
        saved = from_text(text) if text else []
        if not isinstance(saved, list):
            raise CheckpointRefused("the optimizer's parameter groups in the checkpoint are no list")
        if saved and [group["params"] for group in saved] != self._group_names:
            raise CheckpointRefused(
                "the optimizer's parameter groups differ from those of the checkpoint; the script has changed"
            )
        for group, values in zip(self._optimizer.param_groups, saved, strict=bool(saved)):
            for key, value in values.items():
                if key == "params":
                    continue
                if isinstance(group.get(key), Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value

    def _load_scheduler(self, text: str) -> None:
        if self._scheduler is None or not text:
            return
        saved = from_text(text)
        # A torch scheduler puts whatever it is given into its own attributes, its methods included.
        if not isinstance(saved, dict) or saved.keys() - self._scheduler.state_dict().keys():
            raise CheckpointRefused(
                "the scheduler in the checkpoint is of another kind; the script has changed"
            )
        self._scheduler.load_state_dict(saved)

    def _exchange(self, change: Callable[[Holding], Holding | None]) -> None:
        """Put what `change` returns in the place of each parameter of this stage, with its state so far."""
        changed = {id(held.stepped): (held, change(held)) for held in self._holdings}
        for group in self._optimizer.param_groups:
            exchanged = (changed[id(p)][1] if id(p) in changed else p for p in group["params"])
            group["params"] = [p.stepped if isinstance(p, Holding) else p for p in exchanged if p is not None]
        for before, after in changed.values():
            state = self._optimizer.state.pop(before.stepped, {})
            if state and after is not None:
                self._optimizer.state[after.stepped] = {k: _moved(v, before, after) for k, v in state.items()}
        self._holdings = [after for _, after in changed.values() if after is not None]

    def _offloaded(self) -> list[Holding]:
        return [held for held in self._holdings if held.stepped is not held.place]

    def _fetch_gradients(self) -> None:
        for held in self._offloaded():
            if held.place.grad is None:
                held.stepped.grad = None
                continue
            if held.stepped.grad is None:
                assert self._offload is not None
                held.stepped.grad = self._offload.twin(held.place.grad)
            held.stepped.grad.copy_(held.place.grad, non_blocking=True)
        if self._offload is not None:
            self._offload.arrived()

    def _refresh(self) -> None:
        """Bring the twins up to the weights of the device."""
        with torch.no_grad():
            for held in self._offloaded():
                held.stepped.copy_(held.place)


def _scheduler(make: Callable[[Any], Any] | None, optimizer: Optimizer) -> Any:
    if make is None:
        return None
    made = make(optimizer)
    if not all(callable(getattr(made, name, None)) for name in ("step", "state_dict", "load_state_dict")):
        raise InvalidInput(f"scheduler returned {type(made).__name__}; wanted a torch LR scheduler")
    return made


def _moved(value: object, before: Holding, after: Holding) -> object:
    """Return state that a factory made at once, cut and moved like its parameter."""
    if not isinstance(value, Tensor) or value.shape != before.place.shape:
        return value
    is_cut = after.is_slice and not before.is_slice
    part = value.reshape(-1)[after.elements.start : after.elements.stop] if is_cut else value
    return part.to(after.stepped.device, copy=True)


def _as_tensor(held: Holding, key: str, value: object) -> dict[str, Tensor]:
    name = f"optim:{held.name}:{key}"
    if value is None:
        return {}
    if not isinstance(value, Tensor):
        dtype = _NUMBERS.get(type(value))
        if dtype is None:
            raise ModelRefused(
                f"optimizer state {name} is a {type(value).__name__}, which a checkpoint cannot hold"
            )
        name, value = f"{name}#{type(value).__name__}", torch.tensor(value, dtype=dtype)
    is_sliced = held.is_slice and value.shape == held.place.shape
    if held.is_slice and not is_sliced and held.start:
        return {}  # one number for the whole parameter: the first slice's holder tells it
    start = held.start if is_sliced else None
    return {str(PieceName(name, is_alone=held.is_alone, start=start)): value.detach()}
