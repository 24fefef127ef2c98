"""Break a pool again and again while it trains, and show that the result does not change by a bit.

Four local nodes train a small GPT as two pipelines of two stages; one is killed, one joins, the manager is
killed. It takes about three minutes on two cores and leaves nothing behind, interrupted or not. Run it with
`make demo`, or `python examples/gpt/demo.py`.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from varuna_manager import serving
from varuna_manager.client import Client, JobStatus, StepRecord
from varuna_manager.home import Home
from varuna_runtime.spec.errors import NoManager

HERE = Path(__file__).parent
JOB = HERE / "demo.yaml"
VARUNA = (sys.executable, "-m", "varuna_manager.cli")
PATIENCE_S = 150.0
BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Run:
    """The job under attack; `layouts` is what was seen of each generation, `faults` what we did."""

    home: Home
    job: str
    layouts: dict[int, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def client(self) -> Client:
        found = serving.read(self.home)
        if found is None:
            raise NoManager("the manager is away")
        return Client(found.address)

    def wait(self, what: str, is_reached: Callable[[JobStatus], bool]) -> JobStatus:
        """Watch the job until it is where we want it; a manager that is away is waited for."""
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            status = self._look()
            if status is not None and is_reached(status):
                return status
            if status is not None and status.is_over:
                raise SystemExit(f"the job ended too early ({status.state}: {status.reason}), wanted: {what}")
            time.sleep(0.1)
        raise SystemExit(f"gave up waiting for: {what}")

    def _look(self) -> JobStatus | None:
        try:
            with self.client() as client:
                status = client.job(self.job)
                alive = sum(node.state == "READY" for node in client.nodes())
        except NoManager:
            return None
        if status.layout and status.nodes:
            # The first look counts: a node that is killed later was part of it.
            text = f"{status.layout} on {status.nodes} of {alive} nodes"
            self.layouts.setdefault(status.generation, text)
        return status

    def say(self, text: str) -> None:
        self.faults.append(text)
        print(f"  {text}", flush=True)


def main() -> int:
    """Return 0 if both runs end with the same weights; whatever happens, the pool is taken down."""
    _on_signals(_interrupt)
    try:
        return demonstrate()
    except KeyboardInterrupt:
        print("\ninterrupted; the pool is down and nothing is left", file=sys.stderr)
        return 130


def demonstrate() -> int:
    """Show it all and return the exit code."""
    started = time.monotonic()
    with pool(nodes=4) as home:
        print("4 local nodes and a manager run; checking and submitting the job ...", flush=True)
        run = Run(home=home, job=varuna("submit", str(JOB)).strip())
        print(f"{run.job} is submitted; now we break things:", flush=True)
        attack(run)
        status = run.wait("the end", lambda job: job.is_over)
        with run.client() as client:
            steps = client.steps(run.job)
        print(f"{status.state} after {status.step} steps and {status.morphs} morphs\n")
        print_timeline(run, steps)
        print_loss(steps)
    print("\nthe same job once more, alone in one process, undisturbed ...", flush=True)
    alone = weights_alone()
    print(f"\nSHA-256 of the final weights\n  undisturbed  {alone}\n  this run     {status.weights_sha256}")
    is_identical = status.has_succeeded and alone == status.weights_sha256
    print("identical" if is_identical else "DIFFERENT")
    print(f"({time.monotonic() - started:.0f} s)")
    return 0 if is_identical else 1


def _interrupt(*_: object) -> None:
    _on_signals(signal.SIG_IGN)  # a second ctrl-C must not leave half a pool behind
    raise KeyboardInterrupt


def _on_signals(action: signal.Handlers | Callable[..., None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, action)


def attack(run: Run) -> None:
    """Kill a node, bring one back, kill the manager: each at its part of the training."""
    begun = run.wait("some steps", at_share(0.15))
    with run.client() as client:
        victim = [node for node in client.nodes() if node.ranks and node.job == run.job][-1]
    os.kill(victim.pid, signal.SIGKILL)
    run.say(f"step {begun.step}: kill -9 of node {victim.node}")

    survived = run.wait(
        "going on without it", lambda job: job.generation > begun.generation and at_share(0.25)(job)
    )
    varuna("up", "-n", "4")
    run.say(f"step {survived.step}: a node joins")

    run.wait(
        "making use of it", lambda job: job.generation > survived.generation and job.step > survived.step
    )
    joined = run.wait("most of the steps", at_share(0.65))
    manager = serving.read(run.home)
    assert manager is not None
    os.kill(manager.process.pid, signal.SIGKILL)
    run.say(f"step {joined.step}: kill -9 of the manager")
    varuna("up", "-n", "4")
    back = run.wait("news from the workers", lambda job: job.step > joined.step)
    run.say(f"step {back.step}: the manager is back; the workers trained on meanwhile")


def at_share(share: float) -> Callable[[JobStatus], bool]:
    return lambda job: job.num_steps > 0 and job.step >= share * job.num_steps


@contextmanager
def pool(nodes: int) -> Iterator[Home]:
    """Lend a manager and nodes with a state home of their own; nothing of them is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="varuna-demo-"))
    os.environ["VARUNA_HOME"] = str(folder)
    os.environ.pop("VARUNA_MANAGER", None)
    try:
        varuna("up", "-n", str(nodes))
        yield Home(folder)
    finally:
        _on_signals(signal.SIG_IGN)
        varuna("down")
        shutil.rmtree(folder)
        _on_signals(_interrupt)


def varuna(*arguments: str) -> str:
    """Run the command line as a user would, but out of reach of the terminal's ctrl-C."""
    process = subprocess.Popen(
        [*VARUNA, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate()
    except KeyboardInterrupt:
        if arguments[0] != "up":  # which is soon done, and then `down` knows all it started
            process.terminate()
        process.communicate()
        raise
    if process.returncode:
        raise SystemExit(f"varuna {' '.join(arguments)} failed:\n{err}")
    return out


def weights_alone() -> str:
    """Return the SHA-256 of the final weights of one plain process with the same job file."""
    environment = {**os.environ, "VARUNA_JOB": str(JOB), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return next(words[1] for words in lines if words[:1] == ["weights"])


def print_timeline(run: Run, steps: tuple[StepRecord, ...]) -> None:
    """Print one line a generation: its layout, its steps, and how long no step was made before it."""
    print(f"{'GENERATION':<12}{'LAYOUT':<26}{'STEPS':<12}{'A STEP':<10}LOST TO THE MORPH")
    before: StepRecord | None = None
    for generation in sorted({step.generation for step in steps}):
        own = sorted((s for s in steps if s.generation == generation), key=lambda s: s.step)
        layout = run.layouts.get(generation, "?")
        made = f"{own[0].step}..{own[-1].step}"
        typical_ms = f"{statistics.median(step.step_s for step in own) * 1000:.0f} ms"
        print(f"{generation:<12}{layout:<26}{made:<12}{typical_ms:<10}{_lost(before, own[0])}")
        before = own[-1]
    print("LAYOUT is stages x replicas; generation 1 measured the model.\n")


def _lost(before: StepRecord | None, first: StepRecord) -> str:
    if before is None:
        return "-"
    replayed = max(0, before.step + 1 - first.step)
    again = f", {replayed} step{'s' * (replayed != 1)} done again" if replayed else ""
    return f"{first.at - before.at - first.step_s:.1f} s{again}"


def print_loss(steps: tuple[StepRecord, ...]) -> None:
    """Print the loss as a row of bars and in a few numbers."""
    losses = [step.loss for step in sorted({s.step: s for s in steps}.values(), key=lambda s: s.step)]
    width = max(1, len(losses) // 60)
    means = [statistics.fmean(losses[i : i + width]) for i in range(0, len(losses), width)]
    low, high = min(means), max(means)
    bars = "".join(BARS[round((m - low) / ((high - low) or 1) * (len(BARS) - 1))] for m in means)
    print(f"loss {bars}")
    few = [losses[i] for i in range(0, len(losses), max(1, len(losses) // 6))]
    print("     " + "  ".join(f"{value:.3f}" for value in [*few, losses[-1]]))


if __name__ == "__main__":
    sys.exit(main())
