"""Seeded random histories of a spot pool, and the checker that no history may upset."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.pool import Pool, children, copy_job, is_alive, kill, pool
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.spec import batches
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.store import open_store

NODES = 3
STEPS = 120
BATCH = BatchShape(batch_size=22, micro_batch_size=4, virtual_replicas=4)
SAMPLES = 157
SEED = 7


@dataclass(frozen=True)
class Truth:
    """What an undisturbed run on one process gives."""

    weights_sha256: str
    losses: tuple[str, ...]


def undisturbed(folder: pathlib.Path) -> Truth:
    """Train the tiny job alone, without manager or agents."""
    job = copy_job("tiny", folder / "alone")
    result = folder / "result.json"
    env = {**os.environ, "VARUNA_JOB": str(job / "job.yaml"), "RESULT_FILE": str(result)}
    subprocess.run([sys.executable, "train.py"], cwd=job, env=env, check=True, timeout=300)
    answer = json.loads(result.read_text())
    return Truth(weights_sha256=answer["weights_sha256"], losses=tuple(answer["losses"]))


class History:
    """Does one random thing after another to a pool, all drawn from one seed."""

    def __init__(self, lent: Pool, seed: int) -> None:
        self._pool = lent
        self._random = random.Random(seed)
        self.done: list[str] = []
        self._things: tuple[Callable[[], None], ...] = (
            self._kill_worker,
            self._kill_agent,
            self._kill_manager,
            self._freeze_agent,
            self._freeze_worker,
            self._notice,
            self._drain,
            self._join,
            self._kill_launcher,
            self._kill_planner,
            self._kill_guard_and_agent,
            self._terminate_agent,
            self._kill_every_agent,
            self._cancel_notice,
            self._lose_node_without_manager,
        )

    def disturb(self, job: str, times: int) -> None:
        """Do `times` things while the job runs, then give the pool its nodes back."""
        for _ in range(times):
            # One in four comes with the one before: faults of one recovery.
            time.sleep(self._random.choice([0.0, 1.0, 1.0, 1.0]) * self._random.uniform(0.3, 3.0))
            thing = self._random.choice(self._things)
            self.done.append(thing.__name__.strip("_"))
            thing()
            if self._pool.status_or_none(job) in ("succeeded", "failed", "cancelled"):
                break
        self._pool.up(NODES)

    def _kill_worker(self) -> None:
        kill(self._pick(self._pool.worker_pids()))

    def _kill_agent(self) -> None:
        kill(self._pick(list(self._pool.node_pids().values())))

    def _kill_launcher(self) -> None:
        kill(self._pick(self._pool.launcher_pids()))

    def _kill_planner(self) -> None:
        kill(self._pick(self._pool.planner_pids()))

    def _kill_guard_and_agent(self) -> None:
        """The agent's children follow it by their parent-death signal alone."""
        agent = self._pick(list(self._pool.node_pids().values()))
        for guard in set(self._pool.guard_pids()) & set(children(agent)):
            kill(guard)
        kill(agent)

    def _terminate_agent(self) -> None:
        kill(self._pick(list(self._pool.node_pids().values())), signal.SIGTERM)

    def _kill_every_agent(self) -> None:
        for pid in self._pool.node_pids().values():
            kill(pid)
        self._pool.up(NODES)

    def _cancel_notice(self) -> None:
        node = self._some_node()
        self._pool.run("notice", node, "--in", "8s", check=False)
        time.sleep(self._random.uniform(0.2, 3.0))
        self._pool.run("notice", node, "--cancel", check=False)

    def _lose_node_without_manager(self) -> None:
        kill(self._pool.manager_pid())
        kill(self._pick(list(self._pool.node_pids().values())))
        time.sleep(self._random.uniform(0, 12.0))
        self._pool.up(NODES)

    def _kill_manager(self) -> None:
        kill(self._pool.manager_pid())
        time.sleep(self._random.uniform(0, 1.5))
        self._pool.up(NODES)

    def _freeze_agent(self) -> None:
        self._freeze(self._pick(list(self._pool.node_pids().values())))

    def _freeze_worker(self) -> None:
        self._freeze(self._pick(self._pool.worker_pids()))

    def _freeze(self, pid: int) -> None:
        if pid and is_alive(pid):
            kill(pid, signal.SIGSTOP)
            time.sleep(self._random.choice([0.5, 2.0, 6.0]))
            kill(pid, signal.SIGCONT)

    def _notice(self) -> None:
        self._pool.run("notice", self._some_node(), "--in", f"{self._random.choice([1, 4])}s", check=False)

    def _drain(self) -> None:
        self._pool.run("drain", self._some_node(), check=False)

    def _join(self) -> None:
        self._pool.up(self._random.randint(NODES, NODES + 1))

    def _some_node(self) -> str:
        return self._random.choice(sorted(self._pool.node_pids()) or ["none"])

    def _pick(self, pids: list[int]) -> int:
        return self._random.choice(sorted(pids)) if pids else 0


def survive(seed: int, folder: pathlib.Path, truth: Truth, *, faults: int = 6) -> dict[str, object]:
    """Train the tiny job through the history of `seed`, check all that must hold, return its status."""
    samples = folder / "samples"
    samples.mkdir(parents=True)
    job_folder = copy_job("tiny", folder / "job", env=f'{{STEP_PAUSE_S: "0.03", SAMPLE_LOG: "{samples}"}}')
    with pool(folder / "home") as lent:
        lent.up(NODES)
        job = lent.submit(job_folder)
        lent.wait(job, lambda s: int(str(s["step"])) > 0 or s["state"] == "failed")
        history = History(lent, seed)
        history.disturb(job, faults)
        status = lent.wait_end(job, 240)
        story = f"seed {seed}: {', '.join(history.done)}\n"
        assert status["state"] == "succeeded", story + lent.trail(job)
        check(lent, job, status, truth, samples, story)
        return status


def check(
    lent: Pool, job: str, status: dict[str, object], truth: Truth, samples: pathlib.Path, story: str
) -> None:
    """Bits of weights and losses, and the samples of every committed step."""
    assert status["weights_sha256"] == truth.weights_sha256, story + lent.trail(job)
    steps = lent.json("steps", job)
    by_step = {}
    for record in steps:
        by_step.setdefault(int(str(record["step"])), set()).add(record["loss_hex"])
    assert sorted(by_step) == list(range(STEPS)), story
    assert [by_step[s] for s in range(STEPS)] == [{loss} for loss in truth.losses], story
    check_generations(steps, story)
    check_samples(lent, job, steps, samples, story)


def check_generations(steps: list[dict[str, object]], story: str) -> None:
    """Generations grow, and inside one the steps follow each other without a gap."""
    last: dict[int, int] = {}
    for record in sorted(steps, key=lambda r: (r["generation"], r["step"])):
        generation, step = int(str(record["generation"])), int(str(record["step"]))
        assert generation not in last or step == last[generation] + 1, story
        last[generation] = step


def check_samples(
    lent: Pool, job: str, steps: list[dict[str, object]], samples: pathlib.Path, story: str
) -> None:
    """Each committed step used exactly its samples, so each sample is used exactly once an epoch."""
    newest = {
        int(str(r["step"])): int(str(r["generation"])) for r in sorted(steps, key=lambda r: r["generation"])
    }
    first: dict[int, int] = {}
    for record in steps:
        generation, step = int(str(record["generation"])), int(str(record["step"]))
        first[generation] = min(step, first.get(generation, step))
    used: list[int] = []
    for step in range(STEPS):
        seen = samples_of_step(samples, newest[step], step - first[newest[step]])
        positions = batches.step_rows(step, BATCH.batch_size, None)
        wanted = [ref.sample for ref in batches.sample_refs(positions, SAMPLES, SEED, shuffle=True)]
        assert sorted(seen) == sorted(wanted), f"{story}step {step}: {seen} is not {wanted}"
        used.extend(seen)
    epochs, rest = divmod(len(used), SAMPLES)
    counts = Counter(Counter(used).values())
    assert counts == Counter({epochs: SAMPLES - rest, epochs + 1: rest}), story


def samples_of_step(folder: pathlib.Path, generation: int, index: int) -> list[int]:
    """Return the samples that the last stages of a generation logged for its `index`-th step."""
    num_micro = batches.num_micro_batches(BATCH.batch_size, BATCH.micro_batch_size)
    files = sorted(folder.glob(f"g{generation}-r*"), key=lambda p: int(p.name.partition("-r")[2]))
    seen: list[int] = []
    for replica, path in enumerate(files):
        owned = batches.replica_micro_batches(num_micro, BATCH.virtual_replicas, len(files), replica)
        count = sum(len(r) for r in owned)
        lines = path.read_text().splitlines()[index * count : (index + 1) * count]
        seen.extend(int(word) for line in lines for word in line.split())
    return seen


def final_state(lent: Pool, job: str) -> dict[str, bytes]:
    """Return every tensor of the last checkpoint, optimizer state included, as bytes by name."""
    store = open_store(f"file://{lent.home}/store")
    manifest = read_manifest(store, job, STEPS)
    segments = sorted({shard.segment for shard in manifest.shards})
    loaded = load_segments(store, manifest, segments, "cpu")
    return {
        name: tensor.contiguous().view(-1).numpy().tobytes()
        for tensors in loaded.values()
        for name, tensor in tensors.items()
    }
