"""Decides what runs on this node: events in, actions out; no clock, I/O, randomness or logging.

Every action may be repeated without harm. A generation's ranks are forked only when no process of an older
generation of that job is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from varuna_runtime.agent import actions as a
from varuna_runtime.agent import events as e
from varuna_runtime.agent import records as r
from varuna_runtime.agent import verdicts
from varuna_runtime.agent.lifecycle import Generation, Job, Launcher, LauncherState, Rank, RankState


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """After how long silence or slowness counts as a hang, in seconds."""

    silence_s: float = 5.0
    first_word_s: float = 60.0  # a forked worker opens its socket; generous on a crowded machine
    launcher_s: float = 150.0  # bundle, setup command and imports; below the manager's prepare time-out
    doubt_s: float = 5.0  # a worker whose call failed has this long to end by itself
    ending_s: float = 10.0  # and one that said its last word, too
    abort_s: float = 1.0  # to complete a copy of its state, once the manager wants it gone


class Supervisor:
    """The state machines of one node's launchers and ranks."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: dict[str, Job] = {}
        self._num_launchers = 0
        self._now_s = 0.0

    @property
    def is_idle(self) -> bool:
        """True when no process is left."""
        return not any(job.launcher or job.generations for job in self._jobs.values())

    def pids(self) -> dict[r.RankKey, int]:
        """Return the processes of which more is expected than their end."""
        ranks = (rank for job in self._jobs.values() for rank in job.all_ranks())
        return {
            rank.key: rank.pid
            for rank in ranks
            if rank.pid is not None and rank.state is not RankState.ENDING
        }

    def running(self) -> tuple[r.Running, ...]:
        """What really runs here, or is about to; sorted."""
        return tuple(
            r.Running(job=name, generation=number, ranks=tuple(sorted(generation.ranks)))
            for name, job in sorted(self._jobs.items())
            for number, generation in sorted(job.generations.items())
        )

    def handle(self, event: e.Event, now_s: float) -> tuple[a.Action, ...]:
        """Apply one event; `now_s` is monotonic."""
        self._now_s = max(self._now_s, now_s)
        return tuple(self._handle(event))

    def _handle(self, event: e.Event) -> Iterator[a.Action]:
        match event:
            case e.StartReceived():
                yield from self._start(event.order)
            case e.ActivateReceived():
                yield from self._activate(event)
            case e.DrainReceived():
                yield from self._drain(event)
            case e.AbortReceived():
                yield from self._abort(event.job, event.generation)
            case e.WarmReceived():
                yield from self._warm(event.order)
            case e.ForgetReceived():
                yield from self._forget(event.job)
            case e.EndAllReceived():
                yield from self._end_all(event.reason)
            case e.LauncherReady() | e.LauncherFailed() | e.LauncherGone():
                yield from self._launcher_said(event)
            case e.Ticked():
                yield from self._judge()
            case e.StoodStill():
                self._forgive()
            case e.RankBusy():
                if (rank := self._rank(event.key)) is not None:
                    rank.busy_s = self._now_s
            case _:
                yield from self._rank_said(event)

    # --- commands --------------------------------------------------------------------------------------

    def _start(self, order: r.StartOrder) -> Iterator[a.Action]:
        job = self._jobs.setdefault(order.job, Job())
        if job.is_forgotten or order.generation < job.newest:
            yield a.Refuse(job=order.job, generation=order.generation, reason=f"newest is {job.newest}")
        elif order.generation > job.newest:
            job.newest = order.generation
            for old in sorted(job.generations):
                yield from self._end_generation(job, old, grace_s=self._limits.abort_s)
            keys = (r.RankKey(job=order.job, generation=order.generation, rank=n) for n in order.ranks)
            ranks = {key.rank: Rank(key=key) for key in keys}
            job.generations[order.generation] = Generation(order=order, ranks=ranks)
            yield from self._progress(order.job)
        elif order.generation not in job.generations:
            yield a.ReportGone(job=order.job, generation=order.generation)

    def _activate(self, event: e.ActivateReceived) -> Iterator[a.Action]:
        for rank in self._ranks(event.job, event.generation):
            if rank.state is RankState.PREPARED:
                rank.move(RankState.ACTIVATING)
                yield a.CallActivate(key=rank.key, endpoints=event.endpoints, resume=event.resume)

    def _drain(self, event: e.DrainReceived) -> Iterator[a.Action]:
        for rank in self._ranks(event.job, event.generation):
            if rank.state not in (RankState.WAITING, RankState.FORKING, RankState.ENDING):
                yield a.CallDrain(key=rank.key, within_s=event.within_s, persist=event.persist)

    def _abort(self, name: str, number: int) -> Iterator[a.Action]:
        job = self._jobs.setdefault(name, Job())
        job.newest = max(job.newest, number)
        if number not in job.generations:
            yield a.ReportGone(job=name, generation=number)
            return
        yield from self._end_generation(job, number, grace_s=self._limits.abort_s)
        yield from self._progress(name)

    def _warm(self, order: r.LauncherOrder) -> Iterator[a.Action]:
        job = self._jobs.setdefault(order.job, Job())
        if job.is_forgotten:
            yield a.ReportWarm(job=order.job, reason="the job is over")
            return
        job.warm = order
        launcher = job.launcher
        is_ready = launcher is not None and launcher.state is LauncherState.READY
        if launcher is not None and is_ready and launcher.bundle == order.bundle:
            yield a.ReportWarm(job=order.job, reason="")
        else:
            yield from self._progress(order.job)

    def _forget(self, name: str) -> Iterator[a.Action]:
        job = self._jobs.setdefault(name, Job())
        job.is_forgotten = True
        for number in sorted(job.generations):
            yield from self._end_generation(job, number)
        yield from self._progress(name)

    def _end_all(self, reason: str) -> Iterator[a.Action]:
        for _, job in sorted(self._jobs.items()):
            yield from self._stay_cold(job, reason)
            for number in sorted(job.generations):
                yield from self._end_generation(job, number)
            yield from self._close(job)

    # --- launchers -------------------------------------------------------------------------------------

    def _launcher_said(
        self, event: e.LauncherReady | e.LauncherFailed | e.LauncherGone
    ) -> Iterator[a.Action]:
        found = [(n, j) for n, j in self._jobs.items() if j.launcher and j.launcher.id == event.launcher]
        if not found:
            return
        name, job = found[0]
        assert job.launcher is not None
        if isinstance(event, e.LauncherReady):
            if job.launcher.state is LauncherState.OPENING:
                job.launcher.move(LauncherState.READY)
                if job.warm is not None:
                    yield a.ReportWarm(job=name, reason="")
        elif isinstance(event, e.LauncherFailed):
            yield from self._fail_waiting(job, event.failure)
            yield from self._stay_cold(job, event.failure.message)
            yield from self._close(job)
        else:
            yield from self._launcher_gone(job, event.message)
        yield from self._progress(name)

    def _launcher_gone(self, job: Job, message: str) -> Iterator[a.Action]:
        assert job.launcher is not None
        failure = r.Failed(cause=r.Cause.WORKER_CRASH, message=message)
        if job.launcher.state is LauncherState.OPENING:
            yield from self._fail_waiting(job, failure)
        if job.launcher.state is not LauncherState.CLOSING:
            yield from self._stay_cold(job, failure.message)
        job.launcher = None
        for rank in job.all_ranks():
            if rank.state is not RankState.WAITING:
                yield from self._remove(job, rank, failure)

    def _fail_waiting(self, job: Job, failure: r.Failed) -> Iterator[a.Action]:
        for rank in job.all_ranks():
            if rank.state is RankState.WAITING:
                yield from self._remove(job, rank, failure)

    def _stay_cold(self, job: Job, reason: str) -> Iterator[a.Action]:
        """A launcher that ended is not opened again for its own sake, only for ranks or a new Warm."""
        if job.warm is not None:
            yield a.ReportWarm(job=job.warm.job, reason=reason)
            job.warm = None

    def _close(self, job: Job) -> Iterator[a.Action]:
        if job.launcher is not None and job.launcher.state is not LauncherState.CLOSING:
            job.launcher.move(LauncherState.CLOSING)
            yield a.CloseLauncher(launcher=job.launcher.id)

    def _open(self, job: Job, order: r.LauncherOrder, generation: int) -> Iterator[a.Action]:
        self._num_launchers += 1
        number = self._num_launchers
        job.launcher = Launcher(id=number, job=order.job, bundle=order.bundle, since_s=self._now_s)
        yield a.OpenLauncher(launcher=number, generation=generation, order=order)

    def _open_warm(self, job: Job) -> Iterator[a.Action]:
        """Open a launcher without ranks, or make room for it."""
        if job.warm is None or job.generations:
            return
        if job.launcher is None:
            yield from self._open(job, job.warm, 0)
        elif job.launcher.bundle != job.warm.bundle:
            yield from self._close(job)

    def _progress(self, name: str) -> Iterator[a.Action]:
        """Do what is now possible for the job: open or close its launcher, fork, forget."""
        job = self._jobs[name]
        if job.is_forgotten:
            yield from self._close(job)
            if job.launcher is None and not job.generations:
                yield a.DropJob(job=name)
            return
        yield from self._open_warm(job)
        current = job.generations.get(job.newest)
        if current is None or len(job.generations) > 1:
            return
        waiting = [rank for _, rank in sorted(current.ranks.items()) if rank.state is RankState.WAITING]
        if not waiting:
            return
        if job.launcher is None:
            yield from self._open(job, current.order.launcher, current.order.generation)
        elif job.launcher.bundle != current.order.bundle:
            yield from self._close(job)
        elif job.launcher.state is LauncherState.READY:
            for rank in waiting:
                rank.move(RankState.FORKING)
                rank.heard_s = self._now_s
                threads = current.order.spec.threads_per_worker
                yield a.Fork(launcher=job.launcher.id, key=rank.key, threads=threads)

    # --- ranks -----------------------------------------------------------------------------------------

    def _rank_said(
        self,
        event: e.RankForked
        | e.RankReported
        | e.RankStepped
        | e.RankBeat
        | e.RankFrozen
        | e.CallFailed
        | e.RankExited,
    ) -> Iterator[a.Action]:
        rank = self._rank(event.key)
        if rank is None:
            return
        rank.heard_s = self._now_s
        rank.has_spoken |= isinstance(event, e.RankReported | e.RankStepped | e.RankBeat)
        match event:
            case e.RankForked():
                yield from self._forked(rank, event.pid)
            case e.RankReported():
                yield from self._reported(rank, event.report)
            case e.RankStepped():
                yield a.ReportStep(key=event.key, step=event.step)
            case e.RankBeat():
                yield from self._beaten(rank, event.in_step_s)
            case e.RankFrozen():
                if rank.state is not RankState.ENDING:
                    yield from self._condemn(rank, verdicts.frozen(event.stopped_s))
            case e.CallFailed():
                rank.doubt, rank.doubt_s = event.message, self._now_s
            case e.RankExited():
                yield from self._remove(self._jobs[event.key.job], rank, verdicts.crash(rank, event))
                yield from self._progress(event.key.job)
            case _:
                assert_never(event)

    def _forked(self, rank: Rank, pid: int) -> Iterator[a.Action]:
        rank.pid = pid
        if rank.state is RankState.ENDING:
            yield from self._kill(rank)
            return
        rank.move(RankState.PREPARING)
        order = self._jobs[rank.key.job].generations[rank.key.generation].order
        yield a.CallPrepare(key=rank.key, order=order)

    def _reported(self, rank: Rank, report: r.RankReport) -> Iterator[a.Action]:
        if rank.state is RankState.ENDING:
            return
        match report:
            case r.Prepared():
                rank.move(RankState.PREPARED)
            case r.Ready():
                rank.move(RankState.READY)
            case r.Active():
                rank.move(RankState.ACTIVE)
            case r.Drained() | r.Finished() | r.Failed():
                rank.end(self._now_s + self._limits.ending_s)
            case r.Evaluated() | r.Durable() | r.Kept() | r.SaveFailed() | r.PeerSilent():
                pass
            case _:
                assert_never(report)
        yield a.Report(key=rank.key, report=report)

    def _beaten(self, rank: Rank, in_step_s: float) -> Iterator[a.Action]:
        limit = self._jobs[rank.key.job].generations[rank.key.generation].order.spec.hang_timeout_s
        if rank.state is RankState.ACTIVE and in_step_s > limit:
            yield from self._condemn(rank, verdicts.endless(in_step_s, limit))

    def _forgive(self) -> None:
        """Nobody was heard while this agent itself did not run."""
        for job in self._jobs.values():
            for rank in job.all_ranks():
                rank.heard_s = self._now_s

    def _judge(self) -> Iterator[a.Action]:
        for job in self._jobs.values():
            for rank in job.all_ranks():
                yield from self._judge_rank(rank)
            launcher = job.launcher
            if launcher is None or launcher.state is not LauncherState.OPENING:
                continue
            if self._now_s - launcher.since_s > self._limits.launcher_s:
                failure = verdicts.late(self._limits.launcher_s)
                yield from self._fail_waiting(job, failure)
                yield from self._stay_cold(job, failure.message)
                yield from self._close(job)

    def _judge_rank(self, rank: Rank) -> Iterator[a.Action]:
        if rank.state is RankState.WAITING:
            return
        if rank.state is RankState.ENDING:
            if self._now_s > rank.kill_at_s:
                yield from self._kill(rank)
            return
        limit = self._limits.silence_s if rank.has_spoken else self._limits.first_word_s
        if self._now_s - rank.busy_s < limit:  # it computes, and lets no thread of its own speak meanwhile
            order = self._jobs[rank.key.job].generations[rank.key.generation].order
            limit = max(limit, order.spec.hang_timeout_s)
        if self._now_s - rank.heard_s > limit:
            yield from self._condemn(rank, verdicts.silent(limit))
        elif rank.doubt and self._now_s - rank.doubt_s > self._limits.doubt_s:
            yield from self._condemn(rank, r.Failed(cause=r.Cause.START_FAILED, message=rank.doubt))

    def _condemn(self, rank: Rank, failure: r.Failed) -> Iterator[a.Action]:
        """Report first, so that the manager need not wait for the process to end."""
        yield a.Report(key=rank.key, report=failure)
        rank.end(self._now_s)
        yield from self._kill(rank)

    def _kill(self, rank: Rank) -> Iterator[a.Action]:
        rank.kill_at_s = self._now_s + self._limits.ending_s  # again, should it have been in vain
        launcher = self._jobs[rank.key.job].launcher
        if rank.pid is not None and launcher is not None:
            yield a.Kill(launcher=launcher.id, key=rank.key, pid=rank.pid)

    def _end_generation(self, job: Job, number: int, *, grace_s: float = 0.0) -> Iterator[a.Action]:
        """End every process; one that may be copying its state may go on with that for `grace_s`."""
        for rank in list(job.generations[number].ranks.values()):
            if rank.state is RankState.WAITING:
                yield from self._remove(job, rank, None)
                continue
            until_s = self._now_s + (grace_s if rank.may_copy else 0.0)
            if rank.state is RankState.ACTIVE and grace_s:
                yield a.CallAbort(key=rank.key)
            if rank.state is not RankState.ENDING:
                rank.end(until_s)
            rank.kill_at_s = min(rank.kill_at_s, until_s)
            if until_s <= self._now_s:
                yield from self._kill(rank)

    def _remove(self, job: Job, rank: Rank, failure: r.Failed | None) -> Iterator[a.Action]:
        """Forget a rank without process; `failure` is told unless the rank already had its last word."""
        if failure is not None and rank.state is not RankState.ENDING:
            yield a.Report(key=rank.key, report=failure)
        generation = job.generations[rank.key.generation]
        del generation.ranks[rank.key.rank]
        if not generation.ranks:
            del job.generations[rank.key.generation]
            yield a.ReportGone(job=rank.key.job, generation=rank.key.generation)

    # --- look-ups --------------------------------------------------------------------------------------

    def _rank(self, key: r.RankKey) -> Rank | None:
        generation = self._jobs.get(key.job, Job()).generations.get(key.generation)
        return None if generation is None else generation.ranks.get(key.rank)

    def _ranks(self, job: str, number: int) -> list[Rank]:
        generation = self._jobs.get(job, Job()).generations.get(number)
        return [] if generation is None else [rank for _, rank in sorted(generation.ranks.items())]
