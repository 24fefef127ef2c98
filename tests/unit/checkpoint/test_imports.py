"""The agent persists and fetches bytes; it must not pay for torch."""

import subprocess
import sys


def test_store_and_checkpoint_bytes_need_no_torch() -> None:
    modules = "varuna_runtime.checkpoint, varuna_runtime.checkpoint.shards, varuna_runtime.store.bundle"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
