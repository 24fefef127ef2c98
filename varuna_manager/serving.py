"""manager.json: where the manager of a home can be reached, and whether it is still that process.

The file stays when the manager ends: the next one listens at the same address, which agents know.
"""

from dataclasses import dataclass

from varuna_manager import files
from varuna_manager.cloud import processes
from varuna_manager.cloud.processes import ProcessId
from varuna_manager.home import Home
from varuna_runtime.spec import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A manager that serves, or served until it died."""

    address: str  # HOST:PORT
    epoch: int
    process: ProcessId
    is_tls: bool = False

    @property
    def is_alive(self) -> bool:
        """True while exactly that process runs."""
        return processes.is_alive(self.process)


def read(home: Home) -> Serving | None:
    """Return the last manager that served this home, dead or alive."""
    try:
        return canonical.loads(Serving, home.address_file.read_text())
    except FileNotFoundError:
        return None


def write(home: Home, serving: Serving) -> None:
    """Say where this manager serves."""
    files.replace(home.address_file, canonical.dumps(serving).decode())
