"""Memory links for ranks that are threads."""

import threading

from torch import Tensor

from varuna_runtime.worker.link.memory import MemoryLink, MemoryNetwork


class PatientLink(MemoryLink):
    """A memory link for two threads: waiting yields to the other one."""

    def __init__(self, network: MemoryNetwork, rank: int, moved: threading.Condition) -> None:
        super().__init__(network, rank)
        self._moved = moved

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        with self._moved:
            super().send(to, tag, tensors, can_wait=can_wait)
            self._moved.notify_all()

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        with self._moved:
            found = super().poll(source, tag)
            if found is None:
                self._moved.wait(timeout=10)
                found = super().poll(source, tag)
            return found

    def wait(self) -> None:
        return None
