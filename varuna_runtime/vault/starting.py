"""How a vault is started: sockets that outlive it, so that a new one is found where the last one was."""

import socket
import sys
from dataclasses import dataclass

from varuna_runtime.vault.framing import unix_address

_BACKLOG = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where a vault is called; held open by who starts it."""

    local: socket.socket
    remote: socket.socket
    path: str  # of `local`, as workers take it
    port: int  # of `remote`

    def close(self) -> None:
        """Nobody is to call any more."""
        self.local.close()
        self.remote.close()


def open_doors(host: str, name: str) -> Doors:
    """Listen on a free port of `host`, and under `name`, which is outside the file system and leaves nothing.

    OSError: the address is not one of this machine's.
    """
    path = f"@varuna-vault-{name}"
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    remote = socket.socket(family, kind)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        remote.bind(address)
        remote.listen(_BACKLOG)
        local.bind(unix_address(path))
        local.listen(_BACKLOG)
    except OSError:
        remote.close()
        local.close()
        raise
    return Doors(local=local, remote=remote, path=path, port=int(remote.getsockname()[1]))


def command(doors: Doors, control: socket.socket, *, agent: int, limit_bytes: int) -> list[str]:
    """Return the command line; the three sockets have to be passed on, and it is started by a main thread."""
    given = {
        "--agent": agent,
        "--control": control.fileno(),
        "--local": doors.local.fileno(),
        "--remote": doors.remote.fileno(),
        "--limit-bytes": limit_bytes,
    }
    words = [word for name, value in given.items() for word in (name, str(value))]
    return [sys.executable, "-P", "-m", "varuna_runtime.vault", *words]
