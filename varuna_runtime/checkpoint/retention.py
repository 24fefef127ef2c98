"""Which checkpoint objects may go; deletes, so it errs on the side of keeping (torch-free)."""

import re
from collections import defaultdict
from collections.abc import Iterable

from varuna_runtime.checkpoint.manifests import complete_steps, job_prefix, read_manifest
from varuna_runtime.spec.manifest import manifest_key
from varuna_runtime.store import Store

_OBJECT = re.compile(r".*/(?P<step>\d{12,})/(g(?P<generation>\d+)/)?[^/]+")


def prune(store: Store, job: str, *, keep: int, generation: int, up_to: int) -> tuple[str, ...]:
    """Delete what `doomed` names and return the deleted keys.

    Idempotent; a crash in the middle leaves what the next call deletes.
    """
    deleted = doomed(store, job, keep=keep, generation=generation, up_to=up_to)
    store.delete(deleted)
    store.sweep(job_prefix(job), before=f"{up_to:012d}")
    return deleted


def doomed(store: Store, job: str, *, keep: int, generation: int, up_to: int) -> tuple[str, ...]:
    """Return the keys that the newest `keep` complete steps do not need, in the order to delete them.

    Only below step `up_to`, the one that `generation` has just saved or failed to: none in flight is below
    it. What failed saves left must not fill the store for the next ones.
    A manifest goes before its shards. Without a manifest, only shards of this and older generations go:
    they were abandoned.
    """
    complete = [step for step in complete_steps(store, job) if step <= up_to]
    kept = set(complete[-max(keep, 1) :])
    found: list[str] = []
    for step, keys in sorted(_by_step(store.list(job_prefix(job))).items()):
        if step < up_to:
            useless = _unnamed(store, job, step, keys) if step in kept else _ordered(job, step, keys)
            found += [key for key in useless if manifest_key(job, step) in keys or _age(key) <= generation]
    return tuple(found)


def _by_step(keys: Iterable[str]) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for key in keys:
        if match := _OBJECT.fullmatch(key):
            found[int(match["step"])].append(key)
    return found


def _ordered(job: str, step: int, keys: list[str]) -> list[str]:
    return sorted(keys, key=lambda key: (key != manifest_key(job, step), key))


def _unnamed(store: Store, job: str, step: int, keys: list[str]) -> list[str]:
    """Return what other generations left beside a kept step."""
    named = {entry.key for entry in read_manifest(store, job, step).shards} | {manifest_key(job, step)}
    return [key for key in keys if key not in named]


def _age(key: str) -> int:
    match = _OBJECT.fullmatch(key)
    return int(match["generation"] or 0) if match else 0
