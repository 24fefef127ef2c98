"""The Client service: people ask and see; every change goes through an event."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import grpc

from varuna_manager.consumer import Consumer
from varuna_manager.core import events, views
from varuna_manager.core.outlook import outlook
from varuna_manager.core.phases import WAITING, JobPhase
from varuna_manager.core.pool import as_request, of_kind, plannable, preferred_kind, shortage
from varuna_manager.core.state import Job, State
from varuna_manager.logbook import Logbook
from varuna_manager.means import Means
from varuna_manager.planner.request import PlanRequest
from varuna_manager.rows import MetricRow, PlanRow, plan_row
from varuna_manager.rpc import metrics, shown, submission, what_if
from varuna_manager.rpc.bundles import BundleCalls
from varuna_manager.rpc.doorbook import DoorBook
from varuna_manager.rpc.refusals import UnknownName, refusals
from varuna_manager.rpc.tail import Tail
from varuna_manager.rpc.tokens import TokenCalls
from varuna_manager.secrecy import new_suffix
from varuna_manager.security.desk import Desk
from varuna_manager.sizing.books import Books
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.spec.profile import Profile, ProfiledModel, workload_hash
from varuna_runtime.wire.v1 import client_pb2, client_pb2_grpc

_LOOK_S = 0.2  # how often a follower looks; steps and log lines come in bursts
_SETTLE_S = 1.0  # the last log lines arrive a little after the end of their job

Context = grpc.aio.ServicerContext[Any, Any]


class ClientService(TokenCalls, BundleCalls, client_pb2_grpc.ClientServicer):
    """Jobs are found by id, or by name, which means the newest of that name."""

    def __init__(
        self,
        means: Means,
        consumer: Consumer,
        logbook: Logbook,
        books: Books,
        *,
        desk: Desk | None = None,
        book: DoorBook | None = None,
    ) -> None:
        TokenCalls.__init__(self, desk, book)
        BundleCalls.__init__(self, means.store)
        self._means = means
        self._consumer = consumer
        self._logbook = logbook
        self._books = books
        self._submitting = asyncio.Lock()

    async def Submit(  # noqa: N802
        self, request: client_pb2.SubmitRequest, context: Context
    ) -> client_pb2.SubmitReply:
        """Start a job; the same request_id gives the same job, whatever happened to the first reply."""
        async with refusals(context), self._submitting:
            job = _by_request(self._state, request.request_id) or await self._submitted(request)
            return client_pb2.SubmitReply(job=job)

    async def DryRun(  # noqa: N802
        self, request: client_pb2.SubmitRequest, context: Context
    ) -> client_pb2.PlanReply:
        """Plan for the present pool; nothing is kept."""
        async with refusals(context):
            found = submission.parsed(request)
            nodes = plannable(self._state)
            kind = preferred_kind(nodes)
            answer = await self._means.plan(
                PlanRequest(
                    spec=found.spec,
                    model=found.model,
                    profile=await self._profile(request, found, kind),
                    nodes=as_request(of_kind(nodes, found.spec.exactness, kind)),
                    batch=None,
                    outlook=outlook(self._state, None, nodes, self._means.clock.now_s()),
                )
            )
            return shown.plan_reply(plan_row("", answer))

    async def Jobs(self, request: client_pb2.JobsRequest, context: Context) -> client_pb2.JobsReply:  # noqa: N802
        """Return the jobs of these ids or names, or all, in order of submission."""
        async with refusals(context):
            wanted = [self._job(name) for name in request.jobs]
            names = set(request.jobs) | {job.job for job in wanted}
            found = [v for v in views.job_views(self._state) if not wanted or {v.job, v.name} & names]
            return client_pb2.JobsReply(jobs=await self._statuses(found))

    async def Storage(  # noqa: N802
        self, request: client_pb2.StorageRequest, context: Context
    ) -> client_pb2.StorageReply:
        """Say where the checkpoints of a job lie; whoever wants them needs keys of that store."""
        async with refusals(context):
            if not request.job:
                return client_pb2.StorageReply(url=self._means.store_url)
            job = self._job(request.job)
            return client_pb2.StorageReply(
                url=job.spec.checkpoint.store or self._means.store_url, job=job.job
            )

    async def Watch(  # noqa: N802
        self, request: client_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[client_pb2.JobStatus]:
        """Send the job now and after each change, at most a few times a second, until it is over."""
        async with refusals(context):
            job, last = self._job(request.job).job, b""
            while True:
                found = self._state.jobs[job]
                (status,) = await self._statuses([views.job_view(self._state, found)])
                if (text := status.SerializeToString(deterministic=True)) != last:
                    last = text
                    yield status
                if found.is_over:
                    return
                await self._look_again()

    async def Logs(  # noqa: N802
        self, request: client_pb2.LogsRequest, context: Context
    ) -> AsyncIterator[client_pb2.LogsChunk]:
        """Send what the ranks printed, in whole lines, across generations."""
        async with refusals(context):
            job = self._job(request.job).job
            rank = request.rank if request.HasField("rank") else None
            tail = Tail(self._logbook, job, rank)
            async for is_last in self._readings(job, follow=request.follow):
                for lines in await asyncio.to_thread(
                    lambda last: list(tail.new_lines(is_last=last)), is_last
                ):
                    yield client_pb2.LogsChunk(
                        generation=lines.log.generation, rank=lines.log.rank, data=lines.data
                    )

    async def Events(  # noqa: N802
        self, request: client_pb2.EventsRequest, context: Context
    ) -> AsyncIterator[client_pb2.EventRecord]:
        """Send event lines; with `follow` until the job is over, or for ever without a job."""
        async with refusals(context):
            job, after = self._job(request.job).job if request.job else "", request.after
            while True:
                is_last = not request.follow or self._is_over(job)
                while page := await asyncio.to_thread(self._means.database.events, job=job, after=after):
                    for stored in page:
                        yield shown.event_record(stored)
                    after = page[-1].id
                if is_last:
                    return
                await self._look_again()

    async def Steps(  # noqa: N802
        self, request: client_pb2.StepsRequest, context: Context
    ) -> AsyncIterator[client_pb2.StepRecord]:
        """Send every committed step, replays included."""
        async with refusals(context):
            job = self._job(request.job).job
            for row in await asyncio.to_thread(self._means.database.steps, job):
                yield shown.step_record(row)

    async def Metrics(  # noqa: N802
        self, request: client_pb2.MetricsRequest, context: Context
    ) -> AsyncIterator[client_pb2.MetricRecord]:
        """Send each committed step and each evaluation once; with `follow` until the job is over."""
        async with refusals(context):
            job = self._job(request.job).job
            last: MetricRow | None = None
            async for _ in self._readings(job, follow=request.follow):
                while page := await asyncio.to_thread(self._means.database.metrics, job, after=last):
                    for row in page:
                        yield metrics.record(row)
                    last = page[-1]

    async def Nodes(self, request: client_pb2.NodesRequest, context: Context) -> client_pb2.NodesReply:  # noqa: N802
        """Return the nodes by name."""
        found = views.node_views(self._state, self._means.clock.now_s())
        pool_of = self._books.pool_of
        return client_pb2.NodesReply(nodes=[shown.node_status(view, pool_of(view.node)) for view in found])

    async def Pools(self, request: client_pb2.PoolsRequest, context: Context) -> client_pb2.PoolsReply:  # noqa: N802
        """Return the pools in the order of manager.yaml."""
        found = self._books.views(self._means.clock.now_s())
        return client_pb2.PoolsReply(pools=[shown.pool_status(view) for view in found])

    async def Plan(self, request: client_pb2.PlanRequest, context: Context) -> client_pb2.PlanReply:  # noqa: N802
        """Return the plan in use, or the newest answer when none is, and why; or one by another objective."""
        async with refusals(context):
            job = self._job(request.job)
            if request.objective:
                asked = what_if.plan_request(self._state, job, request, self._means.clock.now_s())
                row = plan_row("", await self._means.plan(asked))
            else:
                row = await self._plan_in_use(job)
            reply = shown.plan_reply(row)
            if request.with_profile and job.profile is not None:
                reply.profile_json = canonical.dumps(ProfiledModel(model=job.model, profile=job.profile))
            return reply

    async def _plan_in_use(self, job: Job) -> PlanRow:
        wanted = job.plan.hash() if job.plan is not None and job.run is not None else ""
        row = await asyncio.to_thread(self._means.database.plan, job.job, plan_hash=wanted)
        if row is None:
            raise Conflict(f"job {job.job} has no plan yet: {job.phase}, {job.reason}")
        return row

    async def Cancel(self, request: client_pb2.CancelRequest, context: Context) -> client_pb2.CancelReply:  # noqa: N802
        """Ask for the end of a job; asking again is harmless."""
        async with refusals(context):
            job = self._job(request.job)
            if job.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
                raise Conflict(f"job {job.job} is over already: {job.phase}")
            at_s = self._means.clock.now_s()
            await self._consumer.post(events.CancelRequested(at_s=at_s, job=job.job, user=request.user))
            return client_pb2.CancelReply(state=self._state.jobs[job.job].phase)

    async def DrainNode(  # noqa: N802
        self, request: client_pb2.DrainNodeRequest, context: Context
    ) -> client_pb2.DrainNodeReply:
        """Take a node out of use."""
        async with refusals(context):
            node = self._state.nodes.get(request.node)
            if node is None or node.is_gone:
                here = sorted(name for name, node in self._state.nodes.items() if not node.is_gone)
                raise UnknownName("node", request.node, here)
            at_s = self._means.clock.now_s()
            await self._consumer.post(
                events.NodeDrainRequested(at_s=at_s, node=request.node, user=request.user)
            )
            return client_pb2.DrainNodeReply()

    @property
    def _state(self) -> State:
        return self._consumer.state

    def _job(self, name: str) -> Job:
        jobs = self._state.jobs
        if name in jobs:
            return jobs[name]
        named = [job for job in jobs.values() if job.spec.name == name]
        if not named:
            raise UnknownName("job", name, _names(jobs.values()))
        return max(named, key=lambda job: job.seq)

    async def _statuses(self, found: list[views.JobView]) -> list[client_pb2.JobStatus]:
        totals = await asyncio.to_thread(self._means.database.step_totals, [view.job for view in found])
        return [shown.job_status(self._explained(view), totals.get(view.job)) for view in found]

    def _explained(self, view: views.JobView) -> views.JobView:
        """Add what keeps the pools from giving a job the nodes that it waits for."""
        job = self._state.jobs[view.job]
        if job.phase not in WAITING or not shortage(self._state, job):
            return view
        why = self._books.shortage(self._means.clock.now_s(), self._state.nodes)
        return replace(view, reason=f"{view.reason}; {why}") if why else view

    def _is_over(self, job: str) -> bool:
        return bool(job) and self._state.jobs[job].is_over

    async def _submitted(self, request: client_pb2.SubmitRequest) -> str:
        found = submission.parsed(request)
        secrets = submission.checked_secrets(request, found.spec)
        key = submission.bundle_key(request.bundle)
        if not await asyncio.to_thread(self._means.store.exists, key):
            raise InvalidInput(f"bundle: {key} is not in the manager's store; send it with PutBundle first")
        job = request.job or f"{found.spec.name}-{new_suffix()}"
        if request.job and (job in self._state.jobs or not submission.is_id(job, found.spec.name)):
            raise InvalidInput(f"job: seen the id {job[:80]!r}, wanted a new one of {found.spec.name}")
        await asyncio.to_thread(self._means.secrets.put, job, secrets)
        await self._consumer.post(
            events.JobSubmitted(
                at_s=self._means.clock.now_s(),
                job=job,
                spec=found.spec,
                model=found.model,
                bundle=request.bundle,
                user=request.user or "unknown",
                request_id=request.request_id,
            )
        )
        return job

    async def _profile(
        self, request: client_pb2.SubmitRequest, found: submission.Submission, kind: str
    ) -> Profile:
        text: bytes | None = request.profile_json
        if not text:
            workload = workload_hash(found.model, found.spec, request.bundle)
            text = await asyncio.to_thread(self._means.database.profile, workload, device_kind=kind)
        if not text:
            raise Conflict("no profile of this model is known yet; send one measured on your machine")
        return canonical.loads(Profile, text)

    async def _readings(self, job: str, *, follow: bool) -> AsyncIterator[bool]:
        """Yield once for each time to read; True means that it is the last one."""
        while follow and not self._is_over(job):
            yield False
            await self._look_again()
        if follow:
            await asyncio.sleep(_SETTLE_S)
        yield True

    async def _look_again(self) -> None:
        await asyncio.sleep(_LOOK_S)


def _by_request(state: State, request_id: str) -> str:
    if not request_id:
        return ""
    return next((job.job for job in state.jobs.values() if job.request_id == request_id), "")


def _names(jobs: Iterable[Job]) -> list[str]:
    return sorted({name for job in jobs for name in (job.job, job.spec.name)})
