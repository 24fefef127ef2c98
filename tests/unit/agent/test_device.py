from pathlib import Path

import pytest
import torch

from varuna_runtime.agent.device import cpu_capability, usable_bytes


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


@pytest.mark.parametrize(
    ("meminfo", "limit", "usable"),
    [
        ("MemTotal:  1000 kB\n", "max\n", 1_024_000),
        ("MemTotal:  1000 kB\n", "512000\n", 512_000),
        ("MemTotal:  1000 kB\n", "9000000\n", 1_024_000),
        ("", "max", 0),
    ],
)
def test_a_container_may_use_less_than_the_machine_has(meminfo: str, limit: str, usable: int) -> None:
    assert usable_bytes(meminfo, limit) == usable
