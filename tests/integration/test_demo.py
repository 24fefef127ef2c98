"""The demonstration, interrupted: the pool it made must be gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from varuna_manager.cli.take_down import orphans
from varuna_manager.home import Home

DEMO = Path(__file__).parents[2] / "examples" / "gpt" / "demo.py"


def test_an_interrupted_demo_takes_its_pool_down(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, str(DEMO)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("4 local nodes and a manager run")
    (folder,) = tmp_path.glob("varuna-demo-*")
    for _ in range(2):  # people press it twice
        os.killpg(demo.pid, signal.SIGINT)
    _, told = demo.communicate(timeout=100)
    assert (demo.returncode, told.strip()) == (130, "interrupted; the pool is down and nothing is left")
    assert list(tmp_path.glob("varuna-*")) == []
    assert orphans(Home(folder)) == ()
