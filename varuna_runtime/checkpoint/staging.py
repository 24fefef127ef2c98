"""Copies tensors to host memory behind the training: they do not change before the next optimizer step.

Whoever changes the tensors waits for `Staging.wait` first. Needs torch; made after any fork.
"""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # target in host memory, source on any device


class Staging:
    """One copy under way."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether the sources may change."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether all is copied, after waiting; raises what went wrong."""
        is_done = self._done.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return is_done

    def end(self, error: BaseException | None = None) -> None:
        """Say that the sources may change."""
        self._error = error
        self._done.set()


def stage(pairs: Sequence[Pair], then: Callable[[], None], *, name: str) -> Staging:
    """Copy every source to its target in a thread, then call `then` there; return at once.

    The copies see what this thread did to the sources before. `then` runs after `wait` returns, or beside it,
    and handles its own errors.
    """
    staging = Staging()
    stream = _side_stream(pairs)

    def run() -> None:
        try:
            _copy(pairs, stream)
        except BaseException as err:  # the thread's boundary: whoever waits gets it
            staging.end(err)
            return
        staging.end()
        then()

    threading.Thread(target=run, name=name, daemon=True).start()
    return staging


def _side_stream(pairs: Sequence[Pair]) -> "torch.cuda.Stream | None":
    """Return a stream that waits for what is queued on the present one; None without a GPU."""
    devices = {source.device for _, source in pairs if source.is_cuda}
    if not devices:
        return None
    (device,) = devices
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def _copy(pairs: Sequence[Pair], stream: "torch.cuda.Stream | None") -> None:
    with torch.no_grad(), torch.cuda.stream(stream):
        targets = [target for target, _ in pairs]
        sources = [source.detach() for _, source in pairs]
        if targets:  # in one call: a thread that asks for Python's lock after each tensor waits long for it
            torch._foreach_copy_(targets, sources, non_blocking=stream is not None)
    if stream is not None:
        stream.synchronize()
