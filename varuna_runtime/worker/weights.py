"""The SHA-256 of a model's weights, computed segment by segment, so that no rank needs the whole model."""

import hashlib
from collections.abc import Mapping, Sequence

from torch import Tensor

from varuna_runtime.worker.bits import raw


def segment_digest(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the digest of a segment's tensors: names, dtypes, shapes and raw bytes."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        found.update(raw(tensor.cpu()).numpy().data)
    return found.digest()


def weights_sha256(digests: Sequence[bytes]) -> str:
    """Return the hex digest of the segments' digests, in segment order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()
