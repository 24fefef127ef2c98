"""C2: what a save takes from a training that goes on: standing still, and slower steps."""

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
)

from benchmarks.disk_cases import NUM_RANKS, OURS, QUICK, said, settings_of
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.saved_state import Saves, Size
from benchmarks.testbed import Loopback, Place, Ranks, Run, Runner, in_turns
from varuna_runtime.store.local import FileStore

ROUNDS = 7
SIZE = Size(segments=6, params=7)
NUM_STEPS, BATCH = 8, 96  # steps of which the first begins a save; all saves end before the last
NONE, THREAD, PROCESS, STAGER = "no save", "DCP thread", "DCP process", "DCP thread, async stager"
_FIGURES = ("call s", "wait s", "slow-down s", "background s")


def c2(options: Options) -> Case:
    """Measure each way to save in the background of equal steps."""
    names = [NONE, OURS, STAGER, THREAD] if options.quick else [NONE, OURS, STAGER, THREAD, PROCESS]
    size = QUICK if options.quick else SIZE
    samples = Samples()
    with _folder() as folder, Ranks(Loopback(NUM_RANKS), _build(folder, size), timeout_s=300.0) as ranks:
        for name in names:
            ranks.run(name)
            ranks.run("tidy")
        for round_, name, run in in_turns(ranks, names, options.rounds(ROUNDS)):
            options.keep(samples, round_, name, run)
            ranks.run("tidy")
    return _judged(samples, names, size)


def _judged(samples: Samples, names: list[str], size: Size) -> Case:
    usual_s = Spread.of([_usual_s(run) for run in samples.runs(NONE)])
    case = Case(
        name="C2",
        title="a save behind the training",
        settings=f"{settings_of(size)}; Adam steps of {usual_s.median:.2f} s",
    )
    figures = {name: _figures(samples, name, usual_s.median) for name in names[1:]}
    for name in names:
        shares = {k: Spread.of(v).median for k, v in figures.get(name, {}).items()}
        case.rows.append(Row(name=name, step_s=samples.step(name), shares=shares))
    ours, peer = figures[OURS], figures[STAGER]
    stalls = [call + wait for call, wait in zip(ours["call s"], ours["wait s"], strict=True)]
    slower = [a - b for a, b in zip(ours["slow-down s"], peer["slow-down s"], strict=False)]
    case.claims += [
        Claim(text="ours: call and wait, seconds", value=Spread.of(stalls), target=0.02, at_most=True),
        Claim(
            text="slow-down of ours less that of DCP's async stager, seconds",
            value=Spread.of(slower),
            target=0.0,
            at_most=True,
        ),
    ]
    case.notes += [
        "call: what starts the save; wait: before the optimizer changes what is being copied; slow-down: "
        f"of all {NUM_STEPS} steps together against as many without a save; the slower rank counts.",
        f"slow-down of ours {said(Spread.of(ours['slow-down s']))} s, of the async stager "
        f"{said(Spread.of(peer['slow-down s']))} s.",
        samples.noise(),
    ]
    return case


def _usual_s(run: Run) -> float:
    slowest: float = max(sum(value["steps"]) for value in run.values)
    return slowest / NUM_STEPS


def _figures(samples: Samples, name: str, usual_s: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {key: [] for key in _FIGURES}
    for run in samples.runs(name):
        found["call s"].append(max(value["call"] for value in run.values))
        found["wait s"].append(max(value["wait"] for value in run.values))
        found["slow-down s"].append(max(sum(v["steps"]) for v in run.values) - NUM_STEPS * usual_s)
        found["background s"].append(max(value["background"] for value in run.values))
    return found


def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix=".benchmark-", dir=Path.cwd())


class _Training:
    """A stack of layers with as many parameters as the size says, and Adam."""

    def __init__(self, rank: int, size: Size) -> None:
        self.size = size
        torch.manual_seed(rank)
        layers = [nn.Linear(size.width, size.width, bias=False) for _ in range(size.segments * size.params)]
        self._first = rank * size.segments
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-6, foreach=False)
        self._batch = torch.rand(BATCH, size.width)
        self.step(lambda: None)

    def step(self, before_change: Callable[[], None]) -> None:
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        before_change()
        self._optimizer.step()

    def tensors(self) -> dict[int, dict[str, Tensor]]:
        size = self.size
        found: dict[int, dict[str, Tensor]] = {}
        for index, parameter in enumerate(self._model.parameters()):
            segment, number = self._first + index // size.params, index % size.params
            name, held = f"{segment}.{number}", self._optimizer.state[parameter]
            found.setdefault(segment, {}).update(
                {
                    f"param:{name}": parameter.detach(),
                    f"optim:{name}:exp_avg": held["exp_avg"],
                    f"optim:{name}:exp_avg_sq": held["exp_avg_sq"],
                }
            )
        return found


class _Ours:
    def __init__(self, joined: Joined, folder: Path, training: _Training) -> None:
        self._saves, self._training = Saves(joined, FileStore(folder), training.size), training

    def begin(self, _: int) -> Callable[[], object]:
        return self._saves.begin(self._training.tensors()).wait

    @property
    def is_done(self) -> bool:
        return self._saves.is_durable


class _Peer:
    """One mode of DCP's async_save; what it keeps from save to save is kept."""

    def __init__(
        self, folder: Path, training: _Training, kind: AsyncCheckpointerType, *, cached: bool
    ) -> None:
        self._folder, self._training, self._kind = folder, training, kind
        self._group = dist.new_group(backend="gloo")
        options = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=True,
            use_non_blocking_copy=False,
        )
        self._stager = DefaultStager(options) if cached else None
        self._saving: Future[Any] | None = None
        self._number = 0

    def begin(self, _: int) -> Callable[[], object]:
        self._number += 1
        state = {name: tensor for held in self._training.tensors().values() for name, tensor in held.items()}
        begun = async_save(
            state,
            storage_writer=FileSystemWriter(self._folder / str(self._number)),
            process_group=self._group,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        if isinstance(begun, AsyncSaveResponse):
            self._saving = begun.upload_completion
            return begun.staging_completion.result
        self._saving = begun
        return lambda: None

    @property
    def is_done(self) -> bool:
        assert self._saving is not None
        return self._saving.done() and self._saving.result() is not self


def _build(folder: str, size: Size) -> Callable[[Place], Mapping[str, Runner]]:
    def build(place: Place) -> Mapping[str, Runner]:
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # DCP starts one
        joined, root, training = Joined.at(place), Path(folder), _Training(place.rank, size)
        thread, process = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
        ways: dict[str, _Ours | _Peer] = {
            OURS: _Ours(joined, root / "ours", training),
            STAGER: _Peer(root / "stager", training, thread, cached=True),
            THREAD: _Peer(root / "thread", training, thread, cached=False),
            PROCESS: _Peer(root / "process", training, process, cached=False),
        }

        def tidy(_: int) -> None:
            if place.rank == 0:
                for child in root.iterdir():
                    shutil.rmtree(child)
                os.sync()

        made: dict[str, Runner] = {name: _measured(training, way) for name, way in ways.items()}
        return made | {NONE: _measured(training, None), "tidy": tidy}

    return build


def _measured(training: _Training, way: _Ours | _Peer | None) -> Runner:
    def run(round_: int) -> dict[str, Any]:
        call_s = wait_s = background_s = 0.0
        steps: list[float] = []
        waits: list[Callable[[], object]] = []

        def settle() -> None:
            nonlocal wait_s
            began_s = time.perf_counter()
            while waits:
                waits.pop()()
            wait_s += time.perf_counter() - began_s

        began_s = time.perf_counter()
        if way is not None:
            waits.append(way.begin(round_))
            call_s = time.perf_counter() - began_s
        for _ in range(NUM_STEPS):
            step_s, waited_s = time.perf_counter(), wait_s
            training.step(settle)
            steps.append(time.perf_counter() - step_s - (wait_s - waited_s))
            if way is not None and not background_s and way.is_done:
                background_s = time.perf_counter() - began_s
        while way is not None and not way.is_done:
            time.sleep(0.01)
        background_s = background_s or time.perf_counter() - began_s
        return {"call": call_s, "wait": wait_s, "steps": steps, "background": background_s}

    return run
