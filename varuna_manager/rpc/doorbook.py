"""Event lines about who came to the manager's door; they change no state."""

from varuna_manager.clock import Clock
from varuna_manager.consumer import Consumer
from varuna_manager.core.events import Ticked
from varuna_manager.core.words import What
from varuna_manager.rows import Batch, EventRow
from varuna_manager.security.scarcity import Scarcity


class DoorBook:
    """Refusals are told scarcely; what was let in is bounded by tickets and tokens."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._scarcity = Scarcity()

    def refused(self, address: str, why: str) -> None:
        """Tell that a peer was not let in, unless enough was told about it lately."""
        line = self._scarcity.line(address, why, self._clock.now_s())
        if line is not None:
            self._tell(What.REFUSED, who=address, why=line)

    def enrolled(self, node: str, ticket: str) -> None:
        """Tell that a machine got its certificate."""
        self._tell(What.NODE_ENROLLED, who=node, why=f"by ticket {ticket}", node=node)

    def token_made(self, who: str, why: str) -> None:
        """Tell that someone made a ticket or token."""
        self._tell(What.TOKEN_CREATED, who=who, why=why)

    def token_revoked(self, who: str, why: str) -> None:
        """Tell that someone revoked a ticket or token."""
        self._tell(What.TOKEN_REVOKED, who=who, why=why)

    def _tell(self, what: What, *, who: str, why: str, node: str = "") -> None:
        at_s = self._clock.now_s()
        line = EventRow(at_s=at_s, job="", node=node, generation=0, what=str(what), who=who, why=why)
        self._consumer.offer(Ticked(at_s=at_s), rows=Batch(events=(line,)))  # rows need an event to ride on
