"""What a shard says of itself, and how bytes that are not the shard are refused."""

import pytest
import torch

from varuna_runtime.checkpoint import shards
from varuna_runtime.checkpoint.shards import ShardLabel
from varuna_runtime.checkpoint.tensors import encode
from varuna_runtime.spec.errors import CheckpointRefused

LABEL = ShardLabel(job="job", step=7, generation=2, segment=3, part=1)


def data(label: ShardLabel = LABEL, fill: float = 1.0) -> bytes:
    return encode(label, {"param:w": torch.full((2, 3), fill), "optim:w:step": torch.tensor(5)})


def test_an_entry_describes_the_tensors_and_the_place() -> None:
    entry = shards.describe(data())
    assert entry.key == "jobs/job/checkpoints/000000000007/g2/s00003-001.safetensors"
    assert [(t.name, t.shape, t.dtype, t.num_bytes) for t in entry.tensors] == [
        ("optim:w:step", (), "int64", 8),
        ("param:w", (2, 3), "float32", 24),
    ]


def test_equal_tensors_encode_to_equal_bytes() -> None:
    assert data() == data()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool])
def test_dtypes_are_named_as_torch_prints_them(dtype: torch.dtype) -> None:
    entry = shards.describe(encode(LABEL, {"param:w": torch.zeros(2, dtype=dtype)}))
    assert entry.tensors[0].dtype == str(dtype).removeprefix("torch.")


def test_the_right_bytes_pass() -> None:
    entry = shards.describe(data())
    shards.check(entry, data())
    assert entry.num_bytes == len(data())


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "0 bytes"),
        (data()[:-1], "bytes, wanted"),
        (data() + b"\0", "bytes, wanted"),
        (data(fill=2.0), "checksum"),
        (data(ShardLabel(job="job", step=8, generation=2, segment=3, part=1)), "checksum"),
    ],
)
def test_other_bytes_are_refused_by_key(bad: bytes, reason: str) -> None:
    with pytest.raises(CheckpointRefused, match=rf"s00003-001\.safetensors: .*{reason}"):
        shards.check(shards.describe(data()), bad)


def test_every_flipped_byte_is_noticed() -> None:
    entry, good = shards.describe(data()), data()
    for index in range(len(good)):
        flipped = bytearray(good)
        flipped[index] ^= 0x10
        with pytest.raises(CheckpointRefused):
            shards.check(entry, bytes(flipped))


@pytest.mark.parametrize("length", [0, 4, 8, 20, 100])
def test_a_truncated_object_has_no_entry(length: int) -> None:
    with pytest.raises(CheckpointRefused):
        shards.describe(data()[:length])


def test_a_foreign_safetensors_object_has_no_entry() -> None:
    from safetensors.torch import save

    with pytest.raises(CheckpointRefused, match="not a shard"):
        shards.describe(save({"w": torch.zeros(2)}))
