"""Which tensors each segment holds, under which names, and which of them are one and the same."""

from collections import defaultdict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from varuna_runtime.partition.segments import Segment
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.model import SegmentRecord, TensorRecord, TiedParameter, TiedUse


def held_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor of a module once, under its first name.

    Parameters, then buffers, then tensors in plain attributes, also inside lists, tuples and dicts there.
    """
    found = dict(module.named_parameters()) | dict(module.named_buffers())
    seen = {id(tensor) for tensor in found.values()}
    for prefix, owner in module.named_modules():
        for attribute, value in vars(owner).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            for position, leaf in enumerate(tree_leaves(value)):
                if isinstance(leaf, Tensor) and id(leaf) not in seen:
                    seen.add(id(leaf))
                    found[".".join(filter(None, (prefix, attribute, str(position))))] = leaf
    return found


def all_tensors(segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return every tensor of the model once, under its first name, in canonical order."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for segment in segments:
        for name, tensor in held_tensors(segment.module).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[name] = tensor
    return found


def tied_parameters(segments: Sequence[Segment]) -> tuple[TiedParameter, ...]:
    """Return the parameters that several segments use, in order of their first use."""
    uses: dict[int, list[TiedUse]] = defaultdict(list)
    for index, segment in enumerate(segments):
        for name, parameter in segment.module.named_parameters():
            uses[id(parameter)].append(TiedUse(segment=index, name=name))
    return tuple(TiedParameter(uses=tuple(found)) for found in uses.values() if len(found) > 1)


def state_names(model: nn.Module, segments: Sequence[Segment]) -> tuple[tuple[str, ...], ...]:
    """Return each segment's parameters and persistent buffers, in canonical order.

    A buffer that several segments use is state of the first one; the others hold constant copies.
    """
    persistent = set(model.state_dict(keep_vars=True))
    seen: set[int] = set()
    result: list[tuple[str, ...]] = []
    for segment in segments:
        names = [name for name, _ in segment.module.named_parameters()]
        for name, buffer in segment.module.named_buffers():
            if id(buffer) not in seen and name in persistent:
                names.append(name)
        seen |= {id(buffer) for buffer in segment.module.buffers()}
        result.append(tuple(names))
    return tuple(result)


def records(
    segments: Sequence[Segment], names: Sequence[tuple[str, ...]], tied: Sequence[TiedParameter]
) -> tuple[SegmentRecord, ...]:
    """Return what is recorded of each segment; a tied parameter is listed under its first use only."""
    later_uses = {(use.segment, use.name) for parameter in tied for use in parameter.uses[1:]}
    return tuple(
        SegmentRecord(
            index=index,
            name=segment.name,
            tensors=tuple(
                _tensor_record(segment.module, name)
                for name in names[index]
                if (index, name) not in later_uses
            ),
            param_bytes=sum(p.numel() * p.element_size() for p in segment.module.parameters()),
        )
        for index, segment in enumerate(segments)
    )


def aliases(model: nn.Module, recorded: Sequence[SegmentRecord]) -> tuple[tuple[str, ...], ...]:
    """Return all names in the model's state dict of each tensor that has several, the recorded one first."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, tensor in model.state_dict(keep_vars=True).items():
        names[id(tensor)].append(name)
    groups = {name: group for group in names.values() for name in group if len(group) > 1}
    held = (tensor.name for segment in recorded for tensor in segment.tensors)
    return tuple(
        (name, *(other for other in groups[name] if other != name)) for name in held if name in groups
    )


def refuse_shared_statistics(segments: Sequence[Segment]) -> None:
    """Raise ModelRefused if one normalisation module with running statistics is used by several segments."""
    user: dict[int, int] = {}
    for index, segment in enumerate(segments):
        for name, module in segment.module.named_modules():
            is_running = isinstance(module, _NormBase) and module.track_running_stats
            if is_running and user.setdefault(id(module), index) != index:
                raise ModelRefused(
                    f"module {name!r} keeps running statistics and is used on both sides of a cut; "
                    "give each side its own, or set track_running_stats=False"
                )


def refuse_hidden_parameters(segments: Sequence[Segment]) -> None:
    """Raise ModelRefused if a segment uses another one's parameter without having it as its own.

    Kept in a list or dict it is not among a module's parameters: its copy would not be trained.
    """
    registered = {id(p) for segment in segments for p in segment.module.parameters()}
    for segment in segments:
        own = {id(p) for p in segment.module.parameters()}
        for name, tensor in held_tensors(segment.module).items():
            if id(tensor) in registered - own:
                raise ModelRefused(
                    f"{name!r} is a parameter of another segment, kept in a plain list or dict; "
                    "assign it to an attribute of the module itself, so that both uses are trained as one"
                )


def refuse_gradient_hooks(segments: Sequence[Segment]) -> None:
    """Raise ModelRefused if a parameter has hooks: they would run per micro-batch and use, or not at all."""
    for segment in segments:
        for name, parameter in segment.module.named_parameters():
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise ModelRefused(
                    f"parameter {name!r} has a gradient hook, which cannot follow it to where it is trained; "
                    "scale or mask it in forward, in a parametrization, or in the optimizer"
                )


def _tensor_record(module: nn.Module, name: str) -> TensorRecord:
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(module.get_submodule(owner), attribute)
    return TensorRecord(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        is_buffer=not isinstance(tensor, nn.Parameter),
    )
