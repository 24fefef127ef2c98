"""What kind of device this node's slots are, found without torch."""

import shutil
import subprocess
from pathlib import Path

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX2 = {"avx2", "fma"}
_TIMEOUT_S = 10.0


def device_kind(gpus: tuple[str, ...]) -> str:
    """Return e.g. "cpu:avx2" or "cuda:NVIDIA H200": devices of one kind compute the same bits."""
    if gpus:
        return "cuda:" + "+".join(sorted(set(gpus)))
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


def machine_bytes() -> int:
    """Return the memory that all processes of this machine or container may use; 0: unknown."""
    limit = Path("/sys/fs/cgroup/memory.max")
    return usable_bytes(Path("/proc/meminfo").read_text(), limit.read_text() if limit.is_file() else "max")


def usable_bytes(meminfo: str, cgroup_limit: str) -> int:
    """Return the smaller of the machine's memory and its control group's limit; 0: unknown."""
    totals = (line.split()[1] for line in meminfo.splitlines() if line.startswith("MemTotal:"))
    found = [int(total) * 1024 for total in totals]
    if cgroup_limit.strip().isdigit():
        found.append(int(cgroup_limit))
    return min(found, default=0)
