"""Reports to the manager: numbered, kept until acknowledged, sent again in order after a reconnect."""

from collections import deque
from collections.abc import Callable

from varuna_runtime.agent import clock, codec
from varuna_runtime.agent import records as r
from varuna_runtime.wire.v1 import agent_pb2

_STEPS_PER_MESSAGE = 256


class Outbox:
    """A bounded queue; when it overflows, the oldest step reports go first, other reports never.

    Steps are held back until `flush_steps`, or until another report must come after them. The time that a
    notice leaves passes here, too: it is what is left of it when it is sent.
    """

    def __init__(self, limit: int = 4096, now_s: Callable[[], float] = clock.now_s) -> None:
        self._limit = limit
        self._now_s = now_s
        self._due_s: dict[int, float] = {}  # by seq, of the notices that are kept
        self._seq = 0
        self._kept: deque[agent_pb2.AgentMessage] = deque()
        self._steps: list[r.StepDone] = []
        self._steps_key: r.RankKey | None = None
        self.num_dropped = 0

    @property
    def is_empty(self) -> bool:
        """True when everything was acknowledged."""
        return not self._kept and not self._steps

    def add(self, message: agent_pb2.AgentMessage) -> None:
        """Number and keep a report."""
        self.flush_steps()
        self._number(message)

    def add_step(self, key: r.RankKey, step: r.StepDone) -> None:
        """Keep a step; steps of one generation share a message."""
        if self._steps_key != key or len(self._steps) >= _STEPS_PER_MESSAGE:
            self.flush_steps()
        self._steps_key = key
        self._steps.append(step)

    def flush_steps(self) -> None:
        """Make the held steps a report."""
        if self._steps_key is not None and self._steps:
            self._number(codec.step_report(self._steps_key, self._steps))
        self._steps, self._steps_key = [], None

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` is journaled."""
        while self._kept and self._kept[0].seq <= seq:
            self._due_s.pop(self._kept.popleft().seq, None)

    def has_acknowledged(self, seq: int) -> bool:
        """True when the manager has journaled the report of that number."""
        return not any(message.seq == seq for message in self._kept)

    def after(self, seq: int) -> tuple[agent_pb2.AgentMessage, ...]:
        """Return what is kept beyond `seq`, in order."""
        for message in self._kept:
            if message.seq in self._due_s:
                message.notice.seconds_left = max(0.0, self._due_s[message.seq] - self._now_s())
        return tuple(message for message in self._kept if message.seq > seq)

    def _number(self, message: agent_pb2.AgentMessage) -> None:
        self._seq += 1
        message.seq = self._seq
        self._kept.append(message)
        if message.HasField("notice"):
            self._due_s[self._seq] = self._now_s() + message.notice.seconds_left
        if len(self._kept) > self._limit:
            self._drop_oldest_steps()

    def _drop_oldest_steps(self) -> None:
        for index, message in enumerate(self._kept):
            if message.HasField("steps"):
                del self._kept[index]
                self.num_dropped += 1
                return
