"""Builds a model on the meta device while recording what its construction does to each tensor."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from varuna_runtime.partition.recording import RecordedOp, Recording, TensorRef
from varuna_runtime.partition.replay import replay, replaying
from varuna_runtime.partition.seeding import preserved_random_state, seed_everything
from varuna_runtime.spec import rng
from varuna_runtime.spec.errors import ModelRefused

T = TypeVar("T")

_aten = torch.ops.aten
_UNINITIALISED = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten.empty_like.default,
}
_VALUE_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Construction:
    """Runs a model's construction once; afterwards gives the values of any of its tensors."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.UntypedStorage] = []  # a storage's address names it only while it lives

    def run(self, build: Callable[[], T]) -> T:
        """Call `build` with new tensors on the meta device.

        Numbers it draws itself (random, numpy, torch on real tensors) come from a fixed key, so that every
        process builds the same structure; the global random states are put back.
        """
        with ExitStack() as stack:
            stack.enter_context(preserved_random_state())
            seed_everything(rng.key("build"))
            stack.enter_context(torch.device("meta"))
            stack.enter_context(_Functions(self))
            stack.enter_context(_Operations(self))
            return build()

    def ref(self, tensor: Tensor, where: str) -> TensorRef:
        """Return the recorded view that a meta tensor is."""
        if tensor.layout is not torch.strided:
            raise ModelRefused(
                f"{where}: a tensor of layout {tensor.layout}; only dense tensors are supported"
            )
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            raise ModelRefused(f"{where}: a meta tensor that was not made by the model's own construction")
        return TensorRef(
            storage=number,
            dtype=tensor.dtype,
            size=tuple(tensor.shape),
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
        )

    def real(self, tensor: Tensor, where: str) -> Tensor:
        """Return the present values of a tensor that the construction wants to look at."""
        if not _is_meta(tensor):
            return tensor
        ref = self.ref(tensor, where)
        if self.recording.is_random(ref.storage):
            raise ModelRefused(
                f"{where}: the model's construction looks at values of a randomly initialised tensor, "
                "which do not exist yet; compute them from constants, or in forward"
            )
        with replaying():
            return replay(self.recording, ref, {}, 0)

    def execute(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation on meta tensors, or on real values when it must look at them, and record it."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not any(map(_is_meta, tensors)) and not _makes_meta(func, args, kwargs):
            return func(*args, **kwargs)
        if self._needs_values(func, args, kwargs):
            args, kwargs = tree_map_only(Tensor, lambda t: self.real(t, str(func)), (args, kwargs))
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, self._on_meta, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        refs = tree_map_only(Tensor, lambda t: self.ref(t, str(func)), (args, kwargs))
        result = func(*args, **kwargs)
        self._record(func, *refs, result=result)
        return result

    def skips_meta(self, frame: FrameType | None) -> bool:
        """Answer "is this tensor meta?" asked from `frame`'s caller.

        Functions of torch.nn.init that cannot run without values ask it to return at once: such a call is
        recorded as one operation. To everyone else a meta tensor is a tensor like any other.
        """
        caller = None if frame is None else frame.f_back
        if caller is None or caller.f_globals is not vars(torch.nn.init):
            return False
        code = caller.f_code
        given = {name: caller.f_locals[name] for name in code.co_varnames[: code.co_argcount]}
        kwargs = {name: value for name, value in given.items() if name != "generator"}
        refs = tree_map_only(Tensor, lambda tensor: self.ref(tensor, code.co_name), kwargs)
        storages = tuple(sorted({ref.storage for ref in refs.values() if isinstance(ref, TensorRef)}))
        self.recording.append(
            RecordedOp(
                func=getattr(torch.nn.init, code.co_name),
                args=(),
                kwargs=refs,
                reads=storages,
                writes=storages,
                created=(None,),
                is_random=True,
            )
        )
        return True

    def _needs_values(
        self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        copies_out = func is _aten._to_copy.default and kwargs.get("device") == torch.device("cpu")
        changes_real = any(not _is_meta(tensor) for tensor in _written(func, args, kwargs))
        return copies_out or changes_real or not _VALUE_TAGS.isdisjoint(func.tags)

    def _on_meta(self, tensor: Tensor) -> Tensor:
        """Return a stand-in for a real tensor, whose present values become a constant of the recording."""
        if _is_meta(tensor):
            return tensor
        constant = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        stand_in = torch.empty_like(constant, device="meta")
        self.recording.constants[self._number(stand_in)] = constant
        return stand_in

    def _number(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        return self._numbers.setdefault(storage._cdata, len(self._numbers))

    def _record(
        self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, result: Any
    ) -> None:
        if func.overloadpacket is _aten.set_:
            return
        created = tuple(self._created(leaf) for leaf in tree_leaves(result))
        made = [ref.storage for ref in created if ref is not None]
        changed = [ref.storage for ref in _written(func, args, kwargs)]
        if not made and not changed:
            return
        reads = {leaf.storage for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, TensorRef)}
        self.recording.append(
            RecordedOp(
                func=_zeroed(func) if func in _UNINITIALISED else func,
                args=args,
                kwargs=_replay_kwargs(func, kwargs, result, is_factory=not reads),
                reads=tuple(sorted(reads)),
                writes=tuple(sorted({*made, *changed})),
                created=created,
                is_random=torch.Tag.nondeterministic_seeded in func.tags,
            )
        )

    def _created(self, leaf: Any) -> TensorRef | None:
        if not isinstance(leaf, Tensor) or leaf.untyped_storage()._cdata in self._numbers:
            return None
        self._number(leaf)
        return self.ref(leaf, "construction")


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, construction: Construction) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._construction = construction

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's default wraps the mode so that its first use imports the compiler: seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._construction.execute(func, args, dict(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Mends Python-level calls that would lose values or skip work on the meta device."""

    def __init__(self, construction: Construction) -> None:
        super().__init__()
        self._construction = construction

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.is_meta.__get__:  # type: ignore[attr-defined]
            return _is_meta(args[0]) and self._construction.skips_meta(inspect.currentframe())
        if func in (torch.Tensor.cpu, torch.Tensor.cuda):
            return args[0]
        if func is torch.Tensor.to:
            return _cast(*args, **kwargs)
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            values = _aten._to_copy.default(args[0], device=torch.device("cpu"))
            return func(values, *args[1:], **kwargs)
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and not isinstance(args[0], Tensor):
            kwargs["device"] = "cpu"  # on the meta device the given numbers would be lost
        elif kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "cpu":
            kwargs["device"] = "meta"  # naming an accelerator would start it, and this process forks
        return func(*args, **kwargs)


def _cast(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return `tensor.to(...)` without the move: where the model lives is decided when it is materialised."""
    like = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype | Tensor)), tensor)
    dtype = like.dtype if isinstance(like, Tensor) else like
    kept = {name: kwargs[name] for name in ("copy", "memory_format") if name in kwargs}
    return tensor.to(dtype, **kept)


def _is_meta(tensor: Tensor) -> bool:
    return tensor.device.type == "meta"


def _makes_meta(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell if an operation without meta arguments makes a meta tensor.

    The constructors of old, such as torch.Tensor(2, 3), ignore the device in force; they show here as
    uninitialised memory on the CPU. Tensors without elements stay: torch wraps real storages in them.
    """
    device = kwargs.get("device")
    is_blank = func in (_aten.empty.memory_format, _aten.empty_strided.default) and 0 not in args[0]
    return is_blank or (device is not None and torch.device(device).type == "meta")


def _written(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors (or their refs) among the arguments that the operation changes in place."""
    found: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found.extend(leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor | TensorRef))
    return found


def _replay_kwargs(
    func: OpOverload[..., Any], kwargs: dict[str, Any], result: Any, *, is_factory: bool
) -> dict[str, Any]:
    """Return keyword arguments that give the same on the CPU later, whatever the defaults are then."""
    kept = {name: value for name, value in kwargs.items() if name not in ("generator", "pin_memory")}
    if "device" in kept:
        kept["device"] = torch.device("cpu")
    takes_dtype = any(argument.name == "dtype" for argument in func._schema.arguments)
    if is_factory and takes_dtype and isinstance(result, Tensor):
        kept["dtype"] = result.dtype
    return kept


def _zeroed(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Uninitialised memory replays as zeros, so that a tensor nobody fills is the same everywhere."""
    return lambda *args, **kwargs: func(*args, **kwargs).zero_()
