"""One seed of the campaign: a pool, a job, a hand of faults, and what must hold in the end."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.chaos import checker, figures
from tests.support.chaos.checker import History, Line, Told, Training
from tests.support.chaos.disk import SmallDisk
from tests.support.chaos.injector import NODES, Injector
from tests.support.chaos.machines import Machines, can_skew
from tests.support.chaos.matrix import Cell, Done, Kind, Site, hand, table
from tests.support.chaos.phases import DiskSaves, Phases, ProxySaves, Saves
from tests.support.chaos.watcher import Watcher
from tests.support.clouds.fault_proxy import FaultProxy
from tests.support.clouds.moto import IDENTITY, Moto
from tests.support.pool import TERMINAL, Pool, copy_job, pool, wait_until
from varuna_manager.client import Client, EventRecord, StepRecord
from varuna_runtime.spec.errors import VarunaError

STEPS = 600
_BUCKET = "varuna-chaos"
_PACE_S = 0.006  # of each micro-batch, while there is something to do
_SLOW_S = 0.15  # towards the end, so that the faults do not outlast the job
_LAST_SHARE = 0.75
_STIRRED = 0.2
_DISTURB_S = 130.0  # what is not done by then is missed: a campaign takes no longer on a busy machine
_END_S = 300.0
_BEGIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """What came of one seed."""

    seed: int
    done: tuple[Done, ...]
    missed: int
    figures: figures.Figures
    story: str
    faults: tuple[str, ...]  # what is wrong; nothing is well


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the checkpoints of a pool go, and how it can be broken."""

    site: Site
    store: str
    environment: dict[str, str]
    saves: Saves
    disk: SmallDisk | None = None
    proxy: FaultProxy | None = None


def undisturbed(folder: Path, steps: int = STEPS) -> Training:
    """Train the job alone, without manager or agents."""
    job = copy_job("chaos", folder / "alone", steps=str(steps))
    result = folder / "result.json"
    env = {**os.environ, "VARUNA_JOB": str(job / "job.yaml"), "RESULT_FILE": str(result)}
    subprocess.run(
        [sys.executable, "train.py"],
        cwd=job,
        env={**env, "CHAOS_FOLDER": str(folder)},
        check=True,
        timeout=600,
    )
    answer = json.loads(result.read_text())
    return Training(
        num_steps=steps,
        batch_size=22,
        micro_batch_size=4,
        num_samples=1571,
        seed=7,
        weights_sha256=answer["weights_sha256"],
        losses=tuple(answer["losses"]),
    )


def site_of(seed: int) -> Site:
    """Return the kind of pool that a seed gets: the two take turns, where a disk can be mounted."""
    return Site.DISK if seed % 2 == 0 and SmallDisk.is_possible() else Site.S3


def survive(seed: int, folder: Path, training: Training, *, size: int) -> Survival:
    """Train through the faults of a seed and judge what was seen; `folder` keeps all that was logged."""
    drawn = random.Random(seed)
    folder.mkdir(parents=True)
    script = folder / "script"
    script.mkdir()
    (script / "pace").write_text(str(_PACE_S))
    env = json.dumps({"CHAOS_FOLDER": str(script)})
    job_folder = copy_job("chaos", folder / "job", steps=str(training.num_steps), env=env)
    history: History | None = None
    left: list[str] = []
    try:
        with place_of(site_of(seed), folder) as place, pool(folder / "home", **place.environment) as lent:
            machines = Machines(lent, _settings(folder, place), _extras(lent, place))
            job = _submitted(lent, machines, job_folder)
            with Watcher(lambda: machines.address, job) as watcher:
                watcher.wait(lambda g: g.step > 0 or g.state.lower() in TERMINAL, _BEGIN_S)
                phases = Phases(watcher, script, place.saves)
                injector = Injector(seed, machines, phases, script, disk=place.disk, proxy=place.proxy)
                try:
                    _disturb(injector, watcher, script, drawn, hand(seed, place.site, size), training)
                finally:
                    injector.mend()
                _end(watcher, machines, script, place)
                history = _history(machines, job, watcher, script, injector)
                _keep(lent, job, folder)
    except AssertionError as err:
        if history is None:
            raise
        left.append(f"after the end: {err}")
    assert history is not None
    return Survival(
        seed=seed,
        done=tuple(injector.done),
        missed=len(injector.missed),
        figures=figures.figures(history.told),
        story=story(injector, watcher),
        faults=(*checker.faults(training, history), *left),
    )


def report(survivals: list[Survival]) -> str:
    """Return the table of all faults that were done, and what the campaign measured."""
    done = [one for survival in survivals for one in survival.done]
    missed = sum(survival.missed for survival in survivals)
    measured = figures.line(figures.together([survival.figures for survival in survivals]))
    return f"{table(done)}\n{len(done)} faults, {missed} more had nothing to hit, or no time; {measured}"


def story(injector: Injector, watcher: Watcher) -> str:
    """Return what was done, with the times since the first glimpse, and the glimpses between."""
    began_s = watcher.glimpses[0].at_s
    entries = [(d.at_s, f"{d.kind} in {d.phase}: {d.target}") for d in injector.done]
    entries += injector.happened
    before = ""
    for g in watcher.glimpses:
        shown = f"generation {g.generation} {g.state}"
        if shown != before:
            safe = f"{g.recoverable_step} recoverable, {g.durable_step} durable"
            entries.append((g.at_s, f"    {shown} at step {g.step}, {safe}"))
        before = shown
    return "\n".join(f"{at_s - began_s:8.2f} s  {text}" for at_s, text in sorted(entries))


@contextlib.contextmanager
def place_of(site: Site, folder: Path) -> Iterator[Place]:
    """Lend a place for checkpoints."""
    with contextlib.ExitStack() as held:
        if site is Site.DISK:
            disk = held.enter_context(SmallDisk(folder))
            store = disk.root / "store"
            url = store.absolute().as_uri()
            yield Place(site=site, store=url, environment={}, saves=DiskSaves(store), disk=disk)
            return
        moto = held.enter_context(Moto())
        moto.client("s3").create_bucket(Bucket=_BUCKET)
        proxy = held.enter_context(FaultProxy(moto.url))
        environment = {**IDENTITY, "AWS_ENDPOINT_URL": proxy.url, "AWS_ALLOW_HTTP": "true"}
        yield Place(
            site=site,
            store=f"s3://{_BUCKET}/pool",
            environment=environment,
            saves=ProxySaves(proxy),
            proxy=proxy,
        )


def _settings(folder: Path, place: Place) -> Path:
    path = folder / "manager.yaml"
    path.write_text(f"home: {folder / 'home'}\nstore: {place.store}\n")
    return path


def _extras(lent: Pool, place: Place) -> dict[str, str]:
    return {"TMPDIR": lent.env["TMPDIR"], **place.environment}


def _submitted(lent: Pool, machines: Machines, job_folder: Path) -> str:
    machines.start_manager()
    machines.add(NODES)
    wait_until(lambda: lent.run("nodes", check=False).returncode == 0, "no manager answers", 60)
    return lent.submit(job_folder)


def _disturb(
    injector: Injector,
    watcher: Watcher,
    script: Path,
    drawn: random.Random,
    cells: tuple[Cell, ...],
    training: Training,
) -> None:
    """Do the hand of the seed; steps become slow if the job would be over before that."""
    over = threading.Event()
    deadline = time.monotonic() + _DISTURB_S

    def pace() -> None:
        while not over.wait(0.2):
            if watcher.last.step > training.num_steps * _LAST_SHARE:
                _pace(script, _SLOW_S)

    pacing = threading.Thread(target=pace, name="pace")
    pacing.start()
    try:
        left = [cell for cell in cells if cell.kind is not Kind.CLOCK or can_skew()]
        while left and time.monotonic() < deadline:
            # One in three comes with the one before: faults of one recovery.
            time.sleep(drawn.choice([0.0, 1.0, 1.0]) * drawn.uniform(0.2, 2.5))
            if watcher.last.state.lower() in TERMINAL:
                break
            if drawn.random() < _STIRRED:
                injector.stir()
            injector.do(injector.next_of(left))
        injector.missed += left
    finally:
        over.set()
        pacing.join()


def _pace(script: Path, pause_s: float) -> None:
    (draft := script / "pace-draft").write_text(str(pause_s))
    draft.rename(script / "pace")


def _end(watcher: Watcher, machines: Machines, script: Path, place: Place) -> None:
    """Have all be well until the job is over; a job that is not over by then is told as it is."""
    _pace(script, 0.0)
    if place.proxy is not None:
        place.proxy.heal()
    deadline = time.monotonic() + _END_S
    while watcher.last.state.lower() not in TERMINAL and time.monotonic() < deadline:
        machines.tend(NODES)
        watcher.wait(lambda g: g.state.lower() in TERMINAL, 1.0)


def _history(machines: Machines, job: str, watcher: Watcher, script: Path, injector: Injector) -> History:
    steps: tuple[StepRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()

    def ask() -> bool:
        nonlocal steps, events
        machines.start_manager()
        with contextlib.suppress(VarunaError, ValueError), Client(machines.address) as client:
            steps, events = client.steps(job), tuple(client.events())
        return any(event.job == job for event in events)

    wait_until(ask, "no manager answers at the end", 60)
    told = tuple(
        Told(step=s.step, generation=s.generation, loss_hex=s.loss_hex, at_s=s.at, step_s=s.step_s)
        for s in steps
    )
    trained = frozenset(event.generation for event in events if event.what == "started" and event.job == job)
    return History(
        told=told,
        lines=tuple(read_lines(script)),
        glimpses=watcher.glimpses,
        trained=trained,
        managers=tuple(event.at for event in events if event.what == "manager-started"),
        thawed=frozenset(injector.thawed),
    )


def read_lines(script: Path) -> Iterator[Line]:
    """Yield what the processes of all generations logged; a killed one's last line may be torn."""
    for path in sorted(script.glob("used-*")):
        _, generation, rank, pid = path.name.split("-")
        for text in path.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                at_s, *samples = text.split()
                yield Line(
                    generation=int(generation[1:]),
                    rank=int(rank[1:]),
                    pid=int(pid),
                    at_s=float(at_s),
                    samples=tuple(map(int, samples)),
                )


def _keep(lent: Pool, job: str, folder: Path) -> None:
    """Keep what explains a failure beside the manager's and the nodes' own logs."""
    (folder / "trail.txt").write_text(lent.trail(job))
    records = lent.run("steps", job, "--json", check=False).stdout
    (folder / "steps.jsonl").write_text(records)


def forget(folder: Path) -> None:
    """Remove what a seed left that went well."""
    shutil.rmtree(folder, ignore_errors=True)
