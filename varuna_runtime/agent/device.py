"""What kind of device this node's slots are, found without torch."""

import shutil
import subprocess
from pathlib import Path

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX2 = {"avx2", "fma"}
_TIMEOUT_S = 10.0


def device_kind() -> str:
    """Return e.g. "cpu:avx2" or "cuda:NVIDIA H200": devices of one kind compute the same bits."""
    names = gpu_names()
    if names:
        return "cuda:" + "+".join(sorted(set(names)))
    return f"cpu:{cpu_capability(Path('/proc/cpuinfo').read_text())}"


def cpu_capability(cpuinfo: str) -> str:
    """Return the vector extension torch's CPU kernels are chosen by."""
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            if flags >= _AVX512 | _AVX2:
                return "avx512"
            return "avx2" if flags >= _AVX2 else "default"
    return "default"


def gpu_names() -> tuple[str, ...]:
    """Return the product name of each GPU; none without a working driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def memory_per_slot(meminfo: str, slots: int) -> int:
    """Return an equal share of the node's total memory, in bytes."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024 // slots
    return 0
