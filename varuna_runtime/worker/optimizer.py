"""The user's optimizer and scheduler on one stage, with state by parameter name; never talks to other ranks.

The factory sees every parameter of the model under its name, those of other stages on the meta device: so
groups and schedulers are the same on every rank and layout, and a foreign parameter costs nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput, ModelRefused
from varuna_runtime.worker.plain import from_text, to_text

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
        self._optimizer: Optimizer = made
        self._names = {id(p): name for name, p in named}
        self._check_known()
        # The foreach and fused kernels of a device may round differently: one choice for every layout.
        for settings in (made.defaults, *made.param_groups):
            settings.update({key: False for key in ("foreach", "fused") if key in settings})
        self._scheduler = _scheduler(scheduler, made)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the first group for the next step."""
        return float(self._optimizer.param_groups[0].get("lr", 0.0))

    def step(self, loss: float) -> None:
        """Apply the gradients in `.grad`, then advance the scheduler; `loss` is the step's mean."""
        self._optimizer.step()
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None:
            self._scheduler.step()

    def tensors(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return the live state of these parameters as `optim:<name>:<key>`."""
        found = {}
        for name, parameter in self._local():
            if name in names:
                for key, value in self._optimizer.state.get(parameter, {}).items():
                    found.update(_as_tensor(f"optim:{name}:{key}", value))
        return found

    def groups_text(self) -> str:
        """Return the groups' hyperparameters and the names of their parameters as JSON."""
        groups = [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            | {"params": [self._names[id(p)] for p in group["params"]]}
            for group in self._optimizer.param_groups
        ]
        return to_text(groups, of=f"the optimizer {type(self._optimizer).__name__}")

    def scheduler_text(self) -> str:
        """Return the scheduler's state as JSON; empty when there is none."""
        if self._scheduler is None:
            return ""
        return to_text(self._scheduler.state_dict(), of=f"the scheduler {type(self._scheduler).__name__}")

    def load(self, tensors: Mapping[str, Tensor], *, groups: str, scheduler: str) -> None:
        """Restore what the methods above returned, on any layout; tensors are copied."""
        self._load_groups(groups)
        self._optimizer.state.clear()
        by_name = dict(self._local())
        for full_name, value in tensors.items():
            kind, _, rest = full_name.partition(":")
            name, _, key = rest.rpartition(":")
            if kind == "optim" and name in by_name:
                key, restored = self._restored(key, value, by_name[name])
                self._optimizer.state[by_name[name]][key] = restored
        if self._scheduler is not None and scheduler:
            self._scheduler.load_state_dict(from_text(scheduler))

    def _load_groups(self, text: str) -> None:
        saved = from_text(text) if text else []
        mine = self._optimizer.param_groups
        assert isinstance(saved, list)
        names = [[self._names[id(p)] for p in group["params"]] for group in mine]
        if saved and [group["params"] for group in saved] != names:
            raise CheckpointRefused(
                "the optimizer's parameter groups differ from those of the checkpoint; the script has changed"
            )
        for group, values in zip(mine, saved, strict=bool(saved)):
            for key, value in values.items():
                if key == "params":
                    continue
                if isinstance(group.get(key), Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value

    def _restored(self, key: str, value: Tensor, parameter: nn.Parameter) -> tuple[str, Any]:
        key, _, number = key.partition("#")
        if number:
            return key, value.item()
        # As in Optimizer.load_state_dict: step counters stay on the CPU.
        device = torch.device("cpu") if key == "step" else parameter.device
        return key, value.detach().to(device, copy=True)

    def _local(self) -> Iterator[tuple[str, nn.Parameter]]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.is_meta:
                    yield self._names[id(parameter)], parameter

    def _check_known(self) -> None:
        for group in self._optimizer.param_groups:
            if any(id(p) not in self._names for p in group["params"]):
                raise InvalidInput(
                    "the optimizer holds a parameter that it was not given; "
                    "build it from the named parameters passed to the factory"
                )


def _scheduler(make: Callable[[Any], Any] | None, optimizer: Optimizer) -> Any:
    if make is None:
        return None
    made = make(optimizer)
    if not all(callable(getattr(made, name, None)) for name in ("step", "state_dict", "load_state_dict")):
        raise InvalidInput(f"scheduler returned {type(made).__name__}; wanted a torch LR scheduler")
    return made


def _as_tensor(name: str, value: object) -> dict[str, Tensor]:
    if value is None:
        return {}
    if isinstance(value, Tensor):
        return {name: value.detach()}
    dtype = _NUMBERS.get(type(value))
    if dtype is None:
        raise ModelRefused(
            f"optimizer state {name} is a {type(value).__name__}, which a checkpoint cannot hold"
        )
    return {f"{name}#{type(value).__name__}": torch.tensor(value, dtype=dtype)}
