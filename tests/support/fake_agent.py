"""A scripted agent over real gRPC: trains nothing, but says all that a real one says."""

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc

from varuna_runtime.spec import canonical
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost, Profile, SegmentCost, SegmentProfile
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc, common_pb2

BEAT_S = 0.1
WAIT_S = 30.0


def profile_of(model: ModelRecord, device_kind: str = "cpu:test") -> Profile:
    cost = SegmentCost(
        forward_s=1e-3,
        backward_s=2e-3,
        output_bytes=1024,
        saved_bytes=1024,
        param_bytes=1024,
        optimizer_bytes=2048,
    )
    costs = SegmentProfile(micro_batch_size=4, segments=(cost,) * len(model.segments))
    link = LinkCost(latency_s=1e-4, bandwidth_bps=1e9)
    return Profile(
        model_hash=model.hash(),
        device_kind=device_kind,
        by_micro_batch=(costs,),
        same_node=link,
        cross_node=link,
        optimizer_step_s_per_byte=1e-9,
        measured_on="fake",
    )


@dataclass(slots=True)
class _Generation:
    start: agent_pb2.Start
    step: int = 0
    drain: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)


class FakeAgent:
    """Plays one node. `step_s` paces training; without `warms` it leaves the answer to Warm to the test."""

    def __init__(
        self,
        address: str,
        node: str = "n1",
        *,
        step_s: float = 0.0,
        plays: bool = True,
        warms: bool = True,
        reconnects: bool = True,
        incarnation: str = "",
    ) -> None:
        self.node = node
        self.incarnation = incarnation or uuid.uuid4().hex
        self.heard: list[agent_pb2.ManagerMessage] = []
        self.is_connected = False
        self.step_s = step_s
        self.may_finish = threading.Event()
        self.may_finish.set()
        self._plays = plays
        self._warms = warms
        self._reconnects = reconnects
        self._address = address
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._seq = 0
        self._unacked: list[agent_pb2.AgentMessage] = []
        self._outgoing: queue.Queue[agent_pb2.AgentMessage | None] = queue.Queue()
        self._generations: dict[str, _Generation] = {}
        self._threads: list[threading.Thread] = []
        self._begin(self._connect_again_and_again)

    def __enter__(self) -> "FakeAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.vanish()

    def vanish(self) -> None:
        """End like a machine that loses power: no goodbye."""
        self._closed.set()
        for generation in self._generations.values():
            generation.end.set()
            generation.drain.set()
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join(WAIT_S)

    def wait_for(self, claim: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(claim, WAIT_S), [m.WhichOneof("body") for m in self.heard]

    def wait_for_message(self, body: str, count: int = 1) -> agent_pb2.ManagerMessage:
        self.wait_for(lambda: len(self.all_heard(body)) >= count)
        return self.all_heard(body)[count - 1]

    def all_heard(self, body: str) -> list[agent_pb2.ManagerMessage]:
        return [m for m in self.heard if m.WhichOneof("body") == body]

    def report(self, **body: Any) -> int:
        """Send a report and keep it until it is acknowledged."""
        with self._news:
            self._seq += 1
            message = agent_pb2.AgentMessage(seq=self._seq, **body)
            self._unacked.append(message)
            self._outgoing.put(message)
            return self._seq

    def repeat(self, message: agent_pb2.AgentMessage) -> None:
        self._outgoing.put(message)

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _connect_again_and_again(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(grpc.RpcError):
                self._connect_once()
            self.is_connected = False
            if not self._reconnects:
                return
            self._closed.wait(0.05)

    def _connect_once(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            with self._news:
                self._outgoing = queue.Queue()
                for message in self._unacked:
                    self._outgoing.put(message)
            stub = cast(Any, agent_pb2_grpc).AgentLinkStub(channel)
            for message in stub.Connect(self._messages(self._outgoing)):
                self._hear(message)
                if self._closed.is_set():
                    return

    def _messages(
        self, outgoing: "queue.Queue[agent_pb2.AgentMessage | None]"
    ) -> Iterator[agent_pb2.AgentMessage]:
        yield agent_pb2.AgentMessage(hello=self._hello())
        while not self._closed.is_set():
            try:
                message = outgoing.get(timeout=BEAT_S)
            except queue.Empty:
                message = agent_pb2.AgentMessage(beat=agent_pb2.Beat(running=self._running()))
            if message is None:
                return
            yield message

    def _hello(self) -> agent_pb2.Hello:
        return agent_pb2.Hello(
            node=self.node,
            incarnation=self.incarnation,
            slots=1,
            device_kind="cpu:test",
            memory_bytes=2**30,
            host="127.0.0.1",
            version="test",
            pid=1,
            notices="file",
            running=self._running(),
        )

    def _running(self) -> list[agent_pb2.Running]:
        return [
            agent_pb2.Running(job=job, generation=g.start.generation, ranks=g.start.ranks)
            for job, g in self._generations.items()
        ]

    def _hear(self, message: agent_pb2.ManagerMessage) -> None:
        self.is_connected = True
        body = message.WhichOneof("body")
        if body == "ack":
            with self._news:
                self._unacked = [m for m in self._unacked if m.seq > message.ack.seq]
        if self._plays:
            self._play(message, body)
        with self._news:
            self.heard.append(message)
            self._news.notify_all()

    def _play(self, message: agent_pb2.ManagerMessage, body: str | None) -> None:
        match body:
            case "start":
                self._prepare(message.start)
            case "activate":
                generation = self._generations.get(message.activate.job)
                if generation and generation.start.generation == message.activate.generation:
                    self._begin(lambda: self._train(generation))
            case "warm" if self._warms:
                self.report(warm=agent_pb2.WarmReport(job=message.warm.job, ok=True))
            case "drain":
                self._generations[message.drain.job].drain.set()
            case "abort":
                self._abort(message.abort.job, message.abort.generation)
            case "forget":
                self._generations.pop(message.forget.job, None)

    def _prepare(self, start: agent_pb2.Start) -> None:
        current = self._generations.get(start.job)
        if current is not None and current.start.generation == start.generation:
            return
        generation = _Generation(start, step=start.resume_step)
        self._generations[start.job] = generation
        plan_hash = canonical.loads(Plan, start.plan_json).hash()
        for rank in start.ranks:
            endpoint = common_pb2.Endpoint(rank=rank, host="127.0.0.1", port=1)
            prepared = agent_pb2.Prepared(
                plan_hash=plan_hash, endpoint=endpoint, resume_step=start.resume_step
            )
            self._rank_report(start, rank, prepared=prepared)

    def _train(self, generation: _Generation) -> None:
        start = generation.start
        for rank in start.ranks:
            self._rank_report(start, rank, ready=agent_pb2.Ready())
            self._rank_report(start, rank, active=agent_pb2.Active(step=generation.step))
        model = canonical.loads(ModelRecord, start.model_json)
        if start.kind == common_pb2.PROFILE:
            text = canonical.dumps(profile_of(model))
            self._finish(generation, common_pb2.Finished(profile_json=text))
            return
        while generation.step < model.num_steps or not self.may_finish.is_set():
            generation.drain.wait(self.step_s)
            if generation.end.is_set():
                return
            if generation.drain.is_set():
                self._drain(generation)
                return
            if generation.step < model.num_steps:
                self._step(generation)
        self._evaluate(generation)
        self._durable(generation)
        self._finish(generation, common_pb2.Finished(step=generation.step, weights_sha256="ab" * 32))

    def _step(self, generation: _Generation) -> None:
        loss = 1.0 / (1 + generation.step)
        done = common_pb2.StepDone(
            step=generation.step,
            loss_hex=loss.hex(),
            loss=loss,
            weight=1.0,
            samples=8,
            step_s=0.01,
            grad_norm=0.5,
        )
        start = generation.start
        if 0 in start.ranks:
            steps = agent_pb2.StepReport(job=start.job, generation=start.generation, steps=[done])
            self.report(steps=steps)
        generation.step += 1

    def _evaluate(self, generation: _Generation) -> None:
        start = generation.start
        figures = [common_pb2.Figure(name="loss", value_hex=(0.25).hex(), weight=8.0)]
        done = common_pb2.EvaluationDone(
            step=generation.step, generation=start.generation, samples=8, figures=figures
        )
        if 0 in start.ranks:
            self._rank_report(start, 0, evaluation=done)

    def _durable(self, generation: _Generation) -> None:
        if 0 in generation.start.ranks:
            self._rank_report(generation.start, 0, durable=common_pb2.Durable(step=generation.step))

    def _drain(self, generation: _Generation) -> None:
        self._durable(generation)
        for rank in generation.start.ranks:
            self._rank_report(generation.start, rank, drained=common_pb2.Drained(step=generation.step))
        self._gone(generation)

    def _finish(self, generation: _Generation, finished: common_pb2.Finished) -> None:
        for rank in generation.start.ranks:
            mine = finished if rank == 0 else common_pb2.Finished(step=finished.step)
            self._rank_report(generation.start, rank, finished=mine)
        self._gone(generation)

    def _abort(self, job: str, number: int) -> None:
        generation = self._generations.get(job)
        if generation is not None and generation.start.generation == number:
            generation.end.set()
            self._gone(generation)
        else:
            self.report(gone=agent_pb2.GenerationGone(job=job, generation=number))

    def _gone(self, generation: _Generation) -> None:
        start = generation.start
        if self._generations.get(start.job) is generation:
            del self._generations[start.job]
        self.report(gone=agent_pb2.GenerationGone(job=start.job, generation=start.generation))

    def _rank_report(self, start: agent_pb2.Start, rank: int, **body: Any) -> None:
        self.report(rank=agent_pb2.RankReport(job=start.job, generation=start.generation, rank=rank, **body))
