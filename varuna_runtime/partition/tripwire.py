"""Watches a forward while it is traced: which module it is in, and what a trace cannot keep of it.

Numbers drawn by Python or numpy, and attributes that forward changes, would be frozen in a graph; backward
functions and gradient hooks would be lost.
"""

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from varuna_runtime.partition.seeding import drawn_in_python

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))
_OWN_PLACES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_MAX_ITEMS = 256
_HARMLESS = ("torch.utils.checkpoint._NoopSaveInputs",)  # recomputes, and changes no gradient


class Tripwire:
    """A context in which calls of a model's modules are watched."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(m): name for name, m in model.named_modules()}
        self._inside: list[tuple[nn.Module, object, dict[str, object]]] = []
        self._deepest: nn.Module | None = None
        self._reasons: list[str] = []
        self._handles: list[Any] = []
        self._replaced: list[tuple[type, str, Any]] = []

    def __enter__(self) -> "Tripwire":
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave),
        ]
        self._watch_gradients()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        for owner, name, original in self._replaced:
            setattr(owner, name, original)

    def _watch_gradients(self) -> None:
        """Note calls of what would only act in backward: a graph of the forward has no place for it."""
        function, apply = torch.autograd.Function, vars(torch.autograd.Function)["apply"]
        register = vars(Tensor)["register_hook"]

        def applied(cls: Any, *args: Any, **options: Any) -> Any:
            if f"{cls.__module__}.{cls.__qualname__}" not in _HARMLESS:
                self._trip_here(f"calls {cls.__name__}, whose own backward a traced forward would not have")
            return apply.__func__(cls, *args, **options)

        def registered(tensor: Tensor, hook: Any) -> Any:
            self._trip_here("registers a gradient hook, which a traced forward would not have")
            return register(tensor, hook)

        self._replaced = [(function, "apply", apply), (Tensor, "register_hook", register)]
        setattr(function, "apply", classmethod(applied))  # noqa: B010
        setattr(Tensor, "register_hook", registered)  # noqa: B010

    def tripped(self) -> str | None:
        """Return what forward did that a graph would not repeat; None: nothing."""
        return self._reasons[0] if self._reasons else None

    def explained(self, err: BaseException) -> str:
        """Return one line that says which module failed to be traced, where and why."""
        line = next(iter(str(err).strip().splitlines()), "") or type(err).__name__
        where = _user_line(err)
        module = self._inside[-1][0] if self._inside else None
        inside = "" if module is None else f"{self._described(module)} cannot be traced"
        return ": ".join(filter(None, (inside, where, f"{type(err).__name__}: {line}")))

    def _enter(self, module: nn.Module, args: Any) -> None:
        if id(module) in self._names:
            self._inside.append((module, drawn_in_python(), _look(module)))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in self._names:
            return
        while self._inside:  # what raised inside, and was caught, never left
            entered, drawn, before = self._inside.pop()
            if entered is module:
                break
        if drawn != drawn_in_python():
            self._trip(module, "draws numbers from Python's random or from numpy, which would stay the same")
        changed = sorted(_changes(before, _look(module)))
        if changed:
            self._trip(module, f"changes {', '.join(changed)}, which a traced forward would not do again")

    def _trip_here(self, what: str) -> None:
        if self._inside:
            self._trip(self._inside[-1][0], what)

    def _trip(self, module: nn.Module, what: str) -> None:
        self._reasons.append(f"forward of {self._described(module)} {what}")

    def _described(self, module: nn.Module) -> str:
        name = self._names[id(module)]
        return f"{name} ({type(module).__name__})" if name else type(module).__name__


def _look(module: nn.Module) -> dict[str, object]:
    if type(module).__module__.startswith("torch."):
        return {}
    held = (*vars(module).items(), *module._buffers.items())
    return {key: _mark(value) for key, value in held if key not in _OF_MODULES}


def _mark(value: object) -> object:
    """Return what changes when an attribute does; objects are known by identity alone."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple | set | dict) and len(value) <= _MAX_ITEMS:
        items = value.items() if isinstance(value, dict) else value
        return type(value).__name__, tuple(_mark_of_item(item) for item in items)
    return _Is(value)


def _mark_of_item(item: object) -> object:
    if isinstance(item, tuple):
        return tuple(part if isinstance(part, _PLAIN) else _Is(part) for part in item)
    return item if isinstance(item, _PLAIN) else _Is(item)


class _Is:
    """Equal to the mark of the same object, which it keeps alive."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _changes(before: dict[str, object], after: dict[str, object]) -> Iterator[str]:
    for key, now in after.items():
        if key in before:
            if before[key] != now:
                yield key
        elif _is_state(now):  # other new attributes are what a first call looks up and keeps
            yield key
    yield from before.keys() - after.keys()


def _is_state(mark: object) -> bool:
    is_number = isinstance(mark, int | float) and not isinstance(mark, bool)
    return is_number or (isinstance(mark, _Is) and isinstance(mark.value, Tensor))


def _user_line(err: BaseException) -> str:
    """Return file:line of the last frame outside torch and this package."""
    frames = traceback.extract_tb(err.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((*_OWN_PLACES, "<")):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""
