"""A simulated step for Perfetto or chrome://tracing: a process a replica, a thread a stage or a link."""

import json
from collections.abc import Iterator
from typing import Any

from varuna_manager.planner.recording import StageRecord, StepRecord, TimedMessage
from varuna_runtime.spec.schedule import OpKind

NAMES = {
    OpKind.FORWARD: "forward",
    OpKind.RECOMPUTE: "recompute",
    OpKind.BACKWARD: "backward",
    OpKind.INPUT: "backward of inputs",
    OpKind.WEIGHT: "backward of weights",
}
THREADS = 3  # of a stage: its ops, its activations, its gradients

Event = dict[str, Any]


def chrome_trace(step: StepRecord) -> str:
    """Return the trace as JSON; times are in microseconds, as the format has them."""
    events = [event for rank in step.ranks for event in _events(step, rank)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _events(step: StepRecord, rank: StageRecord) -> Iterator[Event]:
    stage, thread = rank.stage, rank.stage * THREADS
    if stage == 0:
        yield _name(rank, "process_name", f"replica {rank.replica}", 0)
    yield from _named(rank, f"stage {stage}", thread)
    for ran in rank.ops:
        name = f"{NAMES[ran.op.kind]} {ran.op.micro}"
        yield _span(rank, name, ran.start_s, ran.end_s, thread, ran.op.kind.value)
    reduction_s = step.reductions_s[stage]
    if reduction_s > 0:
        end_s = rank.ops[-1].end_s
        yield _span(rank, "reduction", end_s, end_s + reduction_s, thread, "reduction")
    yield from _messages(rank, rank.activations, f"activations {stage} to {stage + 1}", thread + 1)
    yield from _messages(rank, rank.gradients, f"gradients {stage} to {stage - 1}", thread + 2)


def _messages(rank: StageRecord, sent: tuple[TimedMessage, ...], name: str, thread: int) -> Iterator[Event]:
    if not sent:
        return
    yield from _named(rank, name, thread)
    for message in sent:
        yield _span(rank, str(message.micro), message.start_s, message.end_s, thread, "message")


def _named(rank: StageRecord, name: str, thread: int) -> Iterator[Event]:
    """Name a thread and keep it in its place: viewers sort by name otherwise."""
    yield _name(rank, "thread_name", name, thread)
    place = {"sort_index": thread}
    yield {"ph": "M", "name": "thread_sort_index", "pid": rank.replica, "tid": thread, "args": place}


def _name(rank: StageRecord, what: str, name: str, thread: int) -> Event:
    return {"ph": "M", "name": what, "pid": rank.replica, "tid": thread, "args": {"name": name}}


def _span(rank: StageRecord, name: str, start_s: float, end_s: float, thread: int, kind: str) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
        "pid": rank.replica,
        "tid": thread,
    }
