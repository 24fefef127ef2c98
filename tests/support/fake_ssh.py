"""A program that stands in for `ssh`: every host is a folder of this machine, its commands run here."""

import contextlib
import os
import signal
from pathlib import Path

_PROGRAM = r"""#!/bin/sh
# ssh [options] -- HOST COMMAND: as sshd does, the login shell gets one string, in the user's home.
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
echo "$host" >>"@ROOT@/calls"
for mark in "@ROOT@/down" "@ROOT@/$host.down"; do
    [ -e "$mark" ] && { cat "$mark" >&2; exit 255; }
done
mkdir -p "@ROOT@/$host" && cd "@ROOT@/$host" || exit 255
exec env -i PATH="$PATH" HOME="@ROOT@/$host" sh -c "$*"
"""
_AGENT = r"""#!/bin/sh
for word; do printf '%s\n' "$word"; done >"$HOME/arguments"
cat >"$HOME/stdin"
exec sleep 120
"""


class FakeSsh:
    """Hosts below `root`; `agent` is a program that notes how it was called, and then sleeps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.program = self._made("ssh", _PROGRAM.replace("@ROOT@", str(root)))
        self.agent = self._made("agent", _AGENT)

    def home(self, host: str) -> Path:
        return self.root / host

    def folder(self, host: str, node: str) -> Path:
        return self.home(host) / ".varuna" / "nodes" / node

    def break_down(self, host: str = "", said: str = "ssh: connect to host: Connection refused") -> None:
        """Let a host, or all of them, be unreachable."""
        self._mark(host).write_text(f"{said}\n")

    def mend(self, host: str = "") -> None:
        self._mark(host).unlink()

    def kill(self, host: str, node: str) -> None:
        """Kill the agent itself, as the host might."""
        pid = int((self.folder(host, node) / "agent.pid").read_text().split()[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        for path in self.root.glob("*/.varuna/nodes/*/agent.pid"):
            self.kill(path.parents[3].name, path.parent.name)

    def calls(self) -> int:
        return len((self.root / "calls").read_text().splitlines())

    def _mark(self, host: str) -> Path:
        return self.root / (f"{host}.down" if host else "down")

    def _made(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return path
