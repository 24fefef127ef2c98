"""What signals asked of this agent: to drain first, then to stop, then to die."""

import asyncio
import os
import signal


class Stopping:
    """SIGTERM leaves `drain_s` for the hand-over of the node's work; 0: it stops at once."""

    def __init__(self, drain_s: float = 0.0) -> None:
        self.drain_s = drain_s
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()

    def listen(self) -> None:
        """Heed SIGTERM and SIGINT from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGINT, self.interrupt)

    def terminate(self) -> None:
        """SIGTERM: drain if that was wanted; the second time is a SIGINT."""
        if self.drain_s > 0 and not self.drain.is_set():
            self.drain.set()
        else:
            self.interrupt()

    def interrupt(self) -> None:
        """SIGINT: stop; the second time is an order: the guard ends the rest."""
        if self.stop.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        self.stop.set()
