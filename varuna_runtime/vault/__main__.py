"""`python -m varuna_runtime.vault`: an agent's vault; its open sockets come as descriptors."""

import argparse
import signal
import socket

from varuna_runtime.vault.lifeline import die_with
from varuna_runtime.vault.server import Server


def main() -> None:
    """Serve until the agent is gone."""
    parser = argparse.ArgumentParser(prog="varuna_runtime.vault")
    parser.add_argument("--agent", type=int, required=True, metavar="PID")
    parser.add_argument("--control", type=int, required=True, metavar="FD", help="to the agent")
    parser.add_argument("--local", type=int, required=True, metavar="FD", help="listens for workers")
    parser.add_argument("--remote", type=int, required=True, metavar="FD", help="listens for other nodes")
    parser.add_argument("--limit-bytes", type=int, required=True)
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # a ctrl-C is for the agent, which ends us when its work is saved
    die_with(given.agent)
    server = Server(
        local=socket.socket(fileno=given.local),
        remote=socket.socket(fileno=given.remote),
        control=socket.socket(fileno=given.control),
        limit_bytes=given.limit_bytes,
    )
    server.run()


if __name__ == "__main__":
    main()
