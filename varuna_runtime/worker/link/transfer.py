"""Moves one message between two ranks; every call blocks, so it belongs to a thread of the link."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varuna_runtime.worker.link.frames import (
    PREFIX_BYTES,
    Description,
    Kind,
    Slab,
    body_bytes,
    decode,
    describe,
    encode,
)
from varuna_runtime.worker.link.group import FOREVER, Group

HEADER_BYTES = 1024  # sent with every message; a longer header follows in a second part


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message on its way; `ready` is the CUDA event after which its device tensors may be read."""

    description: Description
    tensors: tuple[Tensor, ...]
    ready: torch.cuda.Event | None = None

    @staticmethod
    def of(tag: str, tensors: tuple[Tensor, ...], kind: Kind = Kind.TENSORS) -> "Parcel":
        """Pack a message in the thread that made its tensors."""
        on_device = [t for t in tensors if t.is_cuda]
        ready = torch.cuda.current_stream(on_device[0].device).record_event() if on_device else None
        return Parcel(describe(tag, tensors, kind), tuple(t.detach() for t in tensors), ready)

    def unpack(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tensors where they belong, safe to use on the current stream."""
        if self.ready is not None:
            self.ready.wait(torch.cuda.current_stream(device))
        slabs = zip(self.tensors, self.description.slabs, strict=True)
        return tuple(
            _placed(tensor, slab, device).requires_grad_(slab.requires_grad) for tensor, slab in slabs
        )


class Channel:
    """One direction between this rank and a peer, used by one thread."""

    def __init__(self, group: Group, peer: int) -> None:
        self._group = group
        self._peer = peer
        self._stream = _new_stream(group.device) if group.device.type == "cuda" else None

    def send(self, parcel: Parcel) -> None:
        """Send a message; returns when its tensors have left. Raises RuntimeError if the peer is gone."""
        header = encode(parcel.description)
        with self._on_stream():
            if parcel.ready is not None and self._stream is not None:
                parcel.ready.wait(self._stream)
            self._put(_as_tensor(header[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")))
            if len(header) > HEADER_BYTES:
                self._put(_as_tensor(header[HEADER_BYTES:]))
            for tensor in parcel.tensors:
                if tensor.numel():
                    self._send_tensor(tensor)

    def receive(self) -> Parcel:
        """Return the next message. Raises RuntimeError if the peer is gone, ValueError on a foreign one."""
        description = decode(self._receive_header())
        with self._on_stream():
            tensors = tuple(self._receive_tensor(slab) for slab in description.slabs)
            direct = self._stream is not None and any(t.is_cuda for t in tensors)
            ready = self._stream.record_event() if direct and self._stream is not None else None
        return Parcel(description, tensors, ready)

    def _receive_header(self) -> bytes:
        first = self._get_bytes(HEADER_BYTES)
        length = PREFIX_BYTES + body_bytes(first)
        return first[:length] + (self._get_bytes(length - HEADER_BYTES) if length > HEADER_BYTES else b"")

    def _send_tensor(self, tensor: Tensor) -> None:
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
        if not tensor.is_cuda:
            self._put(tensor)
        elif self._group.nccl is not None:
            pair = self._group.nccl.between(self._group.rank, self._peer)
            pair.send([tensor], self._peer, 0).wait()
            tensor.record_stream(self._stream or torch.cuda.current_stream())
        else:
            self._put(tensor.cpu())

    def _receive_tensor(self, slab: Slab) -> Tensor:
        if slab.on_device and self._group.nccl is not None:
            tensor = torch.empty(slab.shape, dtype=slab.dtype, device=self._group.device)
            if tensor.numel():
                pair = self._group.nccl.between(self._peer, self._group.rank)
                pair.recv([tensor], self._peer, 0).wait()
            return tensor
        pinned = slab.on_device and self._stream is not None
        tensor = torch.empty(slab.shape, dtype=slab.dtype, pin_memory=pinned)
        return self._get(tensor) if tensor.numel() else tensor

    def _put(self, tensor: Tensor) -> None:
        self._group.gloo.send([tensor], self._peer, 0).wait(FOREVER)

    def _get(self, tensor: Tensor) -> Tensor:
        self._group.gloo.recv([tensor], self._peer, 0).wait(FOREVER)
        return tensor

    def _get_bytes(self, count: int) -> bytes:
        return self._get(torch.empty(count, dtype=torch.uint8)).numpy().tobytes()

    def _on_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _placed(tensor: Tensor, slab: Slab, device: torch.device) -> Tensor:
    if not slab.on_device:
        return tensor
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(device))
        return tensor
    return tensor.to(device, non_blocking=True)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # missing in torch's stubs
