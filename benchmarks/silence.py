"""False verdicts: `python -m benchmarks.silence --minutes 10` trains on a local pool that is hard to hear.

Two foreign processes keep the cores busy, and the script holds the interpreter lock for a second or two at a
time. Nobody is lost, so every morph, lost node and failed rank is a false verdict; the exit status is their
number, 100 at most.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.pool import Pool, copy_job, pool

VERDICTS = ("morph", "node-lost", "node-disconnected", "node-fenced", "rank-failed", "retry")
_BUSY = "while True: pass"
_HOLD = (
    "import random, time\n"
    "if random.random() < {chance}:\n"
    "    until = time.monotonic() + random.uniform(0.8, 2.0)\n"
    "    while (left := until - time.monotonic()) > 0:\n"
    "        sum(range(int(min(left, 2.0) * 2e7)))\n"  # one call into C, which lets no other thread in
)
_HORIZON_STEPS = 1_000_000


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Run processes that do nothing but compute."""
    foreign = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in foreign:
            process.kill()
            process.wait()


def measured(*, nodes: int = 4, minutes: float = 10.0, chance: float = 0.1) -> dict[str, object]:
    """Train for so long on a pool of its own and return what was found; `chance`: as on the command line."""
    folder = Path(tempfile.mkdtemp(prefix="varuna-silence-"))
    try:
        with pool(folder / "home") as lent:
            return train(lent, folder / "job", nodes=nodes, minutes=minutes, chance=chance)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def train(lent: Pool, folder: Path, *, nodes: int, minutes: float, chance: float) -> dict[str, object]:
    """Train for so long and return what was said meanwhile that should not have been."""
    lent.up(nodes)
    env = json.dumps({"STEP_PAUSE_S": "0.01", "IN_LOSS": _HOLD.format(chance=chance)})
    job = lent.submit(
        copy_job("tiny", folder, env=env, steps=str(_HORIZON_STEPS), nodes=f"{{min: 1, max: {nodes}}}")
    )
    started = lent.wait(job, lambda s: s["state"] == "running" and int(str(s["step"] or 0)) > 0, 600)
    before = len(lent.json("events"))
    until_s = time.monotonic() + 60 * minutes
    with busy_cores(2):
        while time.monotonic() < until_s:
            time.sleep(10.0)
    status = lent.status(job)
    told = [event for event in lent.json("events")[before:] if event["what"] in VERDICTS]
    lent.run("cancel", job)
    return {
        "minutes": minutes,
        "nodes": nodes,
        "steps": int(str(status["step"])) - int(str(started["step"])),
        "load": os.getloadavg()[0],
        "false_verdicts": len(told),
        "by_kind": dict(Counter(str(event["what"]) for event in told)),
        "first": [f"{event['what']} {event['node']}: {event['why']}" for event in told[:5]],
    }


def main() -> int:
    """Run once; print what was found as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.silence", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--chance", type=float, default=0.1, help="that a micro-batch holds the lock")
    options = parser.parse_args()
    found = measured(nodes=options.nodes, minutes=options.minutes, chance=options.chance)
    print(json.dumps(found, indent=2))
    return min(100, int(str(found["false_verdicts"])))


if __name__ == "__main__":
    sys.exit(main())
