"""A rank 1 that answers rank 0: `python -m tests.support.peer_main HOST` prints its port, then echoes."""

import sys

from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink


def main() -> None:
    listener = listen(sys.argv[1])
    print(listener.getsockname()[1], flush=True)
    link = TcpLink.join(Identity(job="j", generation=1, rank=1, secret="s"), listener, {}, [0])
    try:
        while True:
            message = link.poll(0, "there")
            if message is None:
                link.wait()
            else:
                link.send(0, "back", message)
    except (PeerLost, PeerFailed):
        link.close()


if __name__ == "__main__":
    main()
