"""The command line as a user runs it: in processes, with a state home of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varuna_manager.cloud.pool_file import PoolFile, Role, Started
from varuna_manager.home import Home

LIMIT_S = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a finished command left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the document on standard output."""
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        """Return the objects on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs `varuna ...` on one home."""

    root: Path

    @property
    def home(self) -> Home:
        """The home's layout."""
        return Home(self.root)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every command."""
        kept = {key: value for key, value in os.environ.items() if key != "VARUNA_MANAGER"}
        return {**kept, "VARUNA_HOME": str(self.root)}

    def __call__(self, *arguments: str, code: int | None = 0) -> Done:
        """Run a command to its end; `code` is the exit code it must have, None for any."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, env=self.environment, timeout=LIMIT_S
        )
        if code is not None:
            assert done.returncode == code, (
                f"varuna {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `varuna` with these arguments."""
        return [sys.executable, "-m", "varuna_manager.cli", *arguments]

    def manager(self) -> Started:
        """Return the recorded manager process."""
        return next(s for s in self.started() if s.role is Role.MANAGER)

    def agents(self) -> tuple[Started, ...]:
        """Return the recorded agents, by name."""
        return tuple(sorted((s for s in self.started() if s.role is Role.AGENT), key=lambda s: s.name))

    def started(self) -> tuple[Started, ...]:
        """Return everything `varuna up` recorded."""
        return PoolFile(self.home.pool_file).read().started
