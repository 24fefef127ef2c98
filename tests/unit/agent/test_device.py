from pathlib import Path

import pytest
import torch

from varuna_runtime.agent.device import cpu_capability, memory_per_slot


@pytest.mark.parametrize(
    ("flags", "capability"),
    [
        ("fpu sse2 avx2 fma avx512f avx512bw avx512dq avx512vl", "avx512"),
        ("fpu sse2 avx2 fma avx512f", "avx2"),
        ("fpu sse2", "default"),
    ],
)
def test_the_capability_follows_the_flags(flags: str, capability: str) -> None:
    assert cpu_capability(f"processor : 0\nflags\t\t: {flags}\n") == capability


def test_it_is_the_word_torch_uses_on_this_machine() -> None:
    here = cpu_capability(Path("/proc/cpuinfo").read_text())
    assert here == torch.backends.cpu.get_cpu_capability().lower()


def test_memory_is_shared_by_the_slots() -> None:
    assert memory_per_slot("MemTotal:  1000 kB\n", 4) == 256_000
