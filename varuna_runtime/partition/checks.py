"""What a traced model checks of its inputs in every micro-batch."""

from torch import Tensor

from varuna_runtime.spec.errors import ModelRefused

Sizes = tuple[tuple[str, tuple[int | str, ...]], ...]  # name of an input, its sizes: fixed, or a symbol


def refuse_other_sizes(inputs: tuple[Tensor, ...], wanted: Sizes) -> None:
    """Raise ModelRefused if inputs have sizes that the model was not traced for.

    A number must be met; inputs with the same symbol must agree.
    """
    known: dict[str, tuple[int, str]] = {}
    for tensor, (name, sizes) in zip(inputs, wanted, strict=True):
        if tensor.ndim != len(sizes):
            raise ModelRefused(f"{name} has {tensor.ndim} dimensions; the first samples have {len(sizes)}")
        for dim, (seen, size) in enumerate(zip(tensor.shape, sizes, strict=True)):
            if isinstance(size, int):
                if seen != size:
                    raise ModelRefused(
                        f"{name} has size {seen} in dimension {dim}; forward only works for {size}, the size "
                        "in the first samples: pad to it, or set CutPoints instead of automatic cuts"
                    )
            elif known.setdefault(size, (seen, f"{name} dimension {dim}"))[0] != seen and size.isidentifier():
                other, where = known[size]
                raise ModelRefused(
                    f"{name} has size {seen} in dimension {dim}, but {where} has {other}; "
                    "forward only works where they are equal"
                )
