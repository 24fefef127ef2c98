"""Where everything lies below `$VARUNA_HOME`; names only, it never touches the disk."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """The state home of one manager and of the local pool on this machine."""

    root: Path

    @property
    def manager(self) -> Path:
        """Folder of the manager's own state."""
        return self.root / "manager"

    @property
    def journal(self) -> Path:
        """The manager's SQLite file."""
        return self.manager / "journal.sqlite"

    @property
    def lock(self) -> Path:
        """Held exclusively by the one manager that serves this home."""
        return self.manager / "lock"

    @property
    def address_file(self) -> Path:
        """JSON of the serving manager: pid, start_ticks, boot_id, address, epoch."""
        return self.manager / "manager.json"

    @property
    def manager_log(self) -> Path:
        """Standard output and error of a manager started detached."""
        return self.manager / "manager.log"

    @property
    def logs(self) -> Path:
        """Collected logs of the ranks, one folder a job."""
        return self.manager / "logs"

    @property
    def secrets(self) -> Path:
        """Secrets of jobs that are not over, one file a job."""
        return self.manager / "secrets"

    @property
    def secret_key(self) -> Path:
        """Key from which generation secrets are derived."""
        return self.manager / "generation.key"

    @property
    def authority(self) -> Path:
        """Folder of the certificate authority; its key is worth every node and user."""
        return self.manager

    @property
    def server_pem(self) -> Path:
        """Key and certificate of the TLS listener."""
        return self.manager / "server.pem"

    @property
    def admin_token(self) -> Path:
        """User token of whoever may read the manager's files."""
        return self.manager / "admin.token"

    @property
    def login(self) -> Path:
        """User token stored by `varuna login`."""
        return self.root / "login.token"

    @property
    def store_url(self) -> str:
        """URL of the default object store."""
        return (self.root.absolute() / "store").as_uri()

    @property
    def pool_file(self) -> Path:
        """What `varuna up` started."""
        return self.root / "pool.json"

    @property
    def pool_change(self) -> Path:
        """Held by the one `varuna up` or `down` that changes the pool."""
        return self.root / "pool.change"

    def node(self, node: str) -> Path:
        """Folder of the agent `node`."""
        return self.root / "nodes" / node
