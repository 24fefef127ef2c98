"""From a job, or a store's URL, to the store its checkpoints are in; with a manager or without one."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import stamina

from varuna_manager.cli.connect import connect
from varuna_runtime.spec.errors import InvalidInput, NoManager, StoreError
from varuna_runtime.store import Store, open_store

_NO_KEY = "jobs/none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The checkpoints of one job."""

    store: Store
    url: str
    job: str  # id


def place_of(job: str, store_url: str | None, manager: str | None) -> Place:
    """Return where a job's checkpoints are: its manager is asked, unless the store is named."""
    if store_url:
        return Place(store=opened(store_url), url=store_url, job=job)
    try:
        with connect(manager) as client:
            found = client.storage(job)
    except NoManager as err:
        raise NoManager(f"{err}. Without a manager: --store URL and the job's id") from err
    return Place(store=opened(found.url), url=found.url, job=found.job)


def opened(url: str) -> Store:
    """Return a store that is there and lets us list it; it is not made."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise InvalidInput(
            f"{url}: no such folder on this machine; it is one of the manager's machine, so run this there"
        )
    stamina.instrumentation.set_on_retry_hooks(())  # a person waits: the last reason is told, once
    store = open_store(url)
    try:
        store.exists(_NO_KEY)
    except StoreError as err:
        reason = str(err).removeprefix(f"{_NO_KEY}: ")
        raise StoreError(
            f"{url} cannot be read from here: {reason}. The manager and its nodes have keys of this store; "
            "here they come from the usual places, such as AWS_PROFILE, AZURE_STORAGE_ACCOUNT_KEY or "
            "GOOGLE_APPLICATION_CREDENTIALS"
        ) from err
    return store
