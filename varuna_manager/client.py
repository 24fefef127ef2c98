"""A manager as seen from a shell or a notebook: typed records over the Client service, one call a method.

Expected refusals come as errors of the one tree; nothing here retries or prints.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast

import grpc

from varuna_manager.planner.outlook import LossRate
from varuna_manager.planner.request import Explanation
from varuna_manager.rpc import what_if
from varuna_manager.rpc.metrics import Metric, metric_of
from varuna_manager.rpc.refusals import understood
from varuna_manager.told import Copies as Copies
from varuna_manager.told import EventRecord as EventRecord
from varuna_manager.told import JobStatus as JobStatus
from varuna_manager.told import LogChunk as LogChunk
from varuna_manager.told import NodeStatus as NodeStatus
from varuna_manager.told import PlanReport as PlanReport
from varuna_manager.told import PoolStatus as PoolStatus
from varuna_manager.told import StepRecord as StepRecord
from varuna_manager.told import Storage as Storage
from varuna_manager.told import Submission as Submission
from varuna_manager.told import TokenStatus as TokenStatus
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import NotFound
from varuna_runtime.spec.job import Objective
from varuna_runtime.spec.layout import BatchShape, Infeasible, Plan
from varuna_runtime.spec.profile import ProfiledModel
from varuna_runtime.spec.tickets import UserToken
from varuna_runtime.wire.channels import Access, open_channel
from varuna_runtime.wire.v1 import client_pb2 as pb
from varuna_runtime.wire.v1 import client_pb2_grpc

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1 << 20
_BUNDLE_WITHIN_S = 1800.0

R = TypeVar("R")


class _Message(Protocol):
    """Any protobuf message: read by field name."""

    def __getattribute__(self, name: str, /) -> Any: ...


class Client:
    """Calls one manager; use as a context manager. Safe to use from several threads.

    Without `access` it speaks plain text, as a manager on loopback does; `access_of` makes one of a token.
    """

    def __init__(self, address: str, *, timeout_s: float = 20.0, access: Access | None = None) -> None:
        self.address = address
        self._access = access
        self._timeout_s = timeout_s
        size_options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
            # Its own connection: one shared with an older client would still back off from a manager
            # that was restarted meanwhile.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = open_channel(address, access, size_options)
        stub: Callable[[grpc.Channel], Any] = client_pb2_grpc.ClientStub
        self._stub = stub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every stream and the connection."""
        self._channel.close()

    def put_bundle(self, sha256: str, archive: Path) -> None:
        """Send the archive of a working directory, unless the manager has it already."""
        try:
            self._stub.PutBundle(_chunks(sha256, archive), timeout=_BUNDLE_WITHIN_S)
        except grpc.RpcError as err:
            raise understood(err, self.address, is_secured=self._access is not None) from err

    def submit(self, submission: Submission) -> str:
        """Return the id of the new job."""
        return str(self._call(self._stub.Submit, _submit_request(submission)).job)

    def dry_run(self, submission: Submission) -> PlanReport:
        """Return the plan for the present pool; the manager keeps nothing of it."""
        return _plan_report(self._call(self._stub.DryRun, _submit_request(submission)))

    def jobs(self, *names: str) -> tuple[JobStatus, ...]:
        """Return the jobs of these ids or names; without any, all."""
        reply = self._call(self._stub.Jobs, pb.JobsRequest(jobs=names))
        return tuple(_record(JobStatus, job) for job in reply.jobs)

    def job(self, name: str) -> JobStatus:
        """Return the newest job of that id or name; NotFound if there is none."""
        found = self.jobs(name)
        if not found:
            raise NotFound(f"no job {name}; `varuna status` lists the jobs")
        return max(found, key=lambda job: job.submitted_at)

    def batch(self, name: str) -> BatchShape | None:
        """Return the batch shape of a job; None before its first plan."""
        jobs = self._call(self._stub.Jobs, pb.JobsRequest(jobs=[name])).jobs
        return canonical.loads(BatchShape, jobs[0].batch_json) if jobs and jobs[0].batch_json else None

    def watch(self, job: str) -> Iterator[JobStatus]:
        """Yield the job now and after each change, until it is over."""
        for status in self._stream(self._stub.Watch, pb.WatchRequest(job=job), timeout_s=None):
            yield _record(JobStatus, status)

    def logs(self, job: str, *, rank: int | None = None, follow: bool = False) -> Iterator[LogChunk]:
        """Yield what the ranks printed; with `follow` until the job is over, across morphs."""
        request = pb.LogsRequest(job=job, rank=rank, follow=follow)
        for chunk in self._stream(self._stub.Logs, request, timeout_s=self._limit(follow)):
            yield _record(LogChunk, chunk)

    def events(self, job: str = "", *, follow: bool = False, after: int = 0) -> Iterator[EventRecord]:
        """Yield the events of a job, or of everything, with an id above `after`."""
        request = pb.EventsRequest(job=job, follow=follow, after=after)
        for event in self._stream(self._stub.Events, request, timeout_s=self._limit(follow)):
            yield _record(EventRecord, event)

    def steps(self, job: str) -> tuple[StepRecord, ...]:
        """Return every committed step of a job, replays included."""
        request = pb.StepsRequest(job=job)
        found = self._stream(self._stub.Steps, request, timeout_s=self._timeout_s)
        return tuple(_record(StepRecord, step) for step in found)

    def metrics(self, job: str, *, follow: bool = False) -> Iterator[Metric]:
        """Yield each committed step and evaluation once, ascending; with `follow` until the job is over."""
        request = pb.MetricsRequest(job=job, follow=follow)
        for metric in self._stream(self._stub.Metrics, request, timeout_s=self._limit(follow)):
            yield metric_of(cast(pb.MetricRecord, metric))

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the nodes the manager knows."""
        return tuple(_record(NodeStatus, n) for n in self._call(self._stub.Nodes, pb.NodesRequest()).nodes)

    def pools(self) -> tuple[PoolStatus, ...]:
        """Return the pools in the order of manager.yaml."""
        return tuple(_record(PoolStatus, p) for p in self._call(self._stub.Pools, pb.PoolsRequest()).pools)

    def storage(self, job: str = "") -> Storage:
        """Return where the checkpoints of a job are, or of jobs that name no store of their own."""
        reply = self._call(self._stub.Storage, pb.StorageRequest(job=job))
        return Storage(url=reply.url, job=reply.job)

    def plan(
        self,
        job: str,
        *,
        objective: Objective | None = None,
        losses: LossRate | None = None,
        with_profile: bool = False,
    ) -> PlanReport:
        """Return the newest plan of a job and why it was chosen.

        With an objective, return what the present pool would get by it, and keep nothing; `losses` are for
        `progress` and default to what the manager has seen.
        """
        request = pb.PlanRequest(job=job, with_profile=with_profile)
        return _plan_report(self._call(self._stub.Plan, what_if.asking(request, objective, losses)))

    def cancel(self, job: str, *, user: str) -> str:
        """Ask for the job's end and return its state after that."""
        return str(self._call(self._stub.Cancel, pb.CancelRequest(job=job, user=user)).state)

    def drain(self, node: str, *, user: str) -> None:
        """Take a node out of use: its job moves away, then its agent is told to leave."""
        self._call(self._stub.DrainNode, pb.DrainNodeRequest(node=node, user=user))

    def create_ticket(self, node: str, *, ttl_s: float = 0.0) -> str:
        """Return a new join ticket for one machine; nobody can show it again. 0 s: the default life."""
        request = pb.CreateTokenRequest(kind=pb.TokenKind.JOIN, name=node, ttl_s=ttl_s)
        return str(self._call(self._stub.CreateToken, request).token)

    def create_user_token(self, user: str, *, ttl_s: float = 0.0) -> str:
        """Return a new user token; nobody can show it again. 0 s: the default life."""
        request = pb.CreateTokenRequest(kind=pb.TokenKind.USER, name=user, ttl_s=ttl_s)
        return str(self._call(self._stub.CreateToken, request).token)

    def tokens(self) -> tuple[TokenStatus, ...]:
        """Return every ticket and token the manager remembers, the oldest first."""
        found = self._call(self._stub.Tokens, pb.TokensRequest()).tokens
        return tuple(_record(TokenStatus, t) for t in found)

    def revoke_token(self, id: str) -> None:
        """Make a ticket or token useless at once, for open streams too."""
        self._call(self._stub.RevokeToken, pb.RevokeTokenRequest(id=id))

    def revoke_node(self, node: str) -> None:
        """Make every ticket and certificate of a node useless at once; its next ticket counts again."""
        self._call(self._stub.RevokeToken, pb.RevokeTokenRequest(node=node))

    def _call(self, method: Callable[..., Any], request: object) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as err:
            raise understood(err, self.address, is_secured=self._access is not None) from err

    def _limit(self, follow: bool) -> float | None:
        return None if follow else self._timeout_s

    def _stream(
        self, method: Callable[..., Any], request: object, *, timeout_s: float | None
    ) -> Iterator[_Message]:
        call = method(request, timeout=timeout_s)
        try:
            yield from call
        except grpc.RpcError as err:
            raise understood(err, self.address, is_secured=self._access is not None) from err
        finally:
            call.cancel()


def access_of(token: UserToken) -> Access:
    """Return what a client needs to know the manager, and to be known by it."""
    return Access(ca_pem=token.ca, bearer=token.bearer)


def _chunks(sha256: str, archive: Path) -> Iterator[pb.BundleChunk]:
    """Yield the name first, so that a bundle which is there already is not sent."""
    yield pb.BundleChunk(sha256=sha256)
    with archive.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            yield pb.BundleChunk(data=data)


def _submit_request(submission: Submission) -> pb.SubmitRequest:
    profile = submission.profile
    return pb.SubmitRequest(
        job_json=canonical.dumps(submission.spec),
        model_json=canonical.dumps(submission.model),
        bundle=submission.bundle,
        secrets=dict(submission.secrets),
        profile_json=b"" if profile is None else canonical.dumps(profile),
        user=submission.user,
        request_id=submission.request_id,
        job=submission.job,
    )


def _plan_report(reply: pb.PlanReply) -> PlanReport:
    outcome: Plan | Infeasible = Infeasible(reason=reply.reason, change=reply.change)
    if reply.plan_json:
        outcome = canonical.loads(Plan, reply.plan_json)
    return PlanReport(
        outcome=outcome,
        explanation=canonical.loads(Explanation, reply.explanation_json) if reply.explanation_json else None,
        profile=canonical.loads(ProfiledModel, reply.profile_json) if reply.profile_json else None,
    )


def _record(kind: type[R], message: _Message) -> R:
    """Copy a message into the record that has its field names."""
    values = {f.name: getattr(message, f.name) for f in fields(kind)}  # type: ignore[arg-type]
    if kind is TokenStatus:
        values["kind"] = pb.TokenKind.Name(values["kind"])
    if "copies" in values:
        values["copies"] = tuple(_record(Copies, each) for each in values["copies"])
    for name in {"ranks", "warnings", "segments"} & values.keys():
        values[name] = tuple(values[name])
    return kind(**values)
