"""Text of a job file -> JobSpec, or every mistake in it with its line. Never opens a file."""

from pathlib import PurePosixPath
from urllib.parse import urlsplit

from varuna_runtime.spec.batches import num_micro_batches
from varuna_runtime.spec.job import STORE_SCHEMES, Exactness, JobSpec, Nodes, ReduceDtype
from varuna_runtime.spec.mistakes import Mistake
from varuna_runtime.spec.yamlfile import Draft, Located, read

__all__ = ["Mistake", "locate", "parse"]


def parse(text: str, *, source: str) -> JobSpec | tuple[Mistake, ...]:
    """Return the job, or all mistakes in order; `source` is the file's name as messages show it."""
    found = locate(text, source=source)
    return found.value if isinstance(found, Located) else found


def locate(text: str, *, source: str) -> Located[JobSpec] | tuple[Mistake, ...]:
    """Like `parse`, but keeps the line of every key for checks that need the outside world."""
    return read(JobSpec, text, source=source, cross_checks=_cross_checks)


def _cross_checks(draft: Draft) -> None:
    _check_batch(draft)
    _check_replicas(draft)
    _check_nodes(draft)
    _check_length(draft)
    _check_reduction(draft)
    _check_environment(draft)
    _check_paths(draft)
    _check_store(draft)


def _check_batch(draft: Draft) -> None:
    batch, micro = draft.whole_number("batch_size"), draft.whole_number("micro_batch_size")
    if batch and micro and micro > batch:
        draft.add(
            ("micro_batch_size",),
            seen=f'"{micro}"',
            wanted=f"at most batch_size, which is {batch}",
            hint="a micro-batch is a part of the batch",
        )


def _check_replicas(draft: Draft) -> None:
    """V and D are bounded by M; with an automatic micro-batch size M is at most the batch size."""
    batch = draft.whole_number("batch_size")
    if batch is None:
        return
    micro = draft.whole_number("micro_batch_size")
    limit = num_micro_batches(batch, micro) if micro else batch
    virtual = draft.whole_number("virtual_replicas")
    if virtual and virtual > limit:
        wanted = f"at most the number of micro-batches of a step, which is {limit}"
        draft.add(("virtual_replicas",), seen=f'"{virtual}"', wanted=wanted)
        virtual = None
    replicas = draft.whole_number("layout", "replicas")
    most = min(limit, virtual or limit)
    if replicas and replicas > most:
        reason = (
            "virtual_replicas" if virtual and virtual < limit else "the number of micro-batches of a step"
        )
        draft.add(("layout", "replicas"), seen=f'"{replicas}"', wanted=f"at most {reason}, which is {most}")


def _check_nodes(draft: Draft) -> None:
    least = draft.whole_number("nodes", "min") or Nodes().min
    most = draft.whole_number("nodes", "max") or Nodes().max
    if least > most:
        written = "" if draft.get("nodes", "max") else " by default"
        draft.add(
            ("nodes", "min"),
            seen=f'"{least}"',
            wanted=f"at most nodes.max, which is {most}{written}",
            hint=f"set nodes.max to {least} or more",
        )


def _check_length(draft: Draft) -> None:
    if draft.get("steps") is not None and draft.get("epochs") is not None:
        last = max(("steps", "epochs"), key=lambda key: draft.marks[(key,)])
        draft.add((last,), seen="both steps and epochs", wanted="one of the two", hint=f"remove `{last}`")


def _check_reduction(draft: Draft) -> None:
    if draft.text("reduce_dtype") == ReduceDtype.BF16 and draft.text("exactness") != Exactness.STATISTICAL:
        draft.add(
            ("reduce_dtype",),
            seen='"bf16" with exactness: bitwise',
            wanted='"fp32", because rounding on the wire depends on the number of replicas',
            hint="set exactness to statistical, or leave reduce_dtype out",
        )


def _check_environment(draft: Draft) -> None:
    env = draft.get("env")
    names = set(env) if isinstance(env, dict) else set()
    for name in sorted(n for n in names if n.startswith("VARUNA_")):
        draft.add(
            ("env", name), seen=f'"{name}"', wanted="a name that does not begin with VARUNA_, kept for us"
        )
    secrets = draft.get("secrets")
    seen: set[object] = set()
    for index, name in enumerate(secrets if isinstance(secrets, list) else ()):
        if name in names:
            wanted = "a name that env does not set"
            draft.add(("secrets", index), seen=f'"{name}"', wanted=wanted, hint=f"remove `{name}` from env")
        elif name in seen:
            draft.add(("secrets", index), seen=f'"{name}" a second time', wanted="each secret once")
        if isinstance(name, str):
            seen.add(name)


def _check_paths(draft: Draft) -> None:
    entrypoint = draft.text("entrypoint")
    if entrypoint is not None and not _stays_inside(entrypoint):
        draft.add(
            ("entrypoint",),
            seen=draft.seen(("entrypoint",)),
            wanted="a script inside workdir, relative to it",
            hint="set workdir to the script's folder and name the script alone",
        )
    if draft.text("workdir") == "":
        draft.add(("workdir",), seen='""', wanted="a folder, relative to the job file", hint='write "."')


def _stays_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return bool(path) and "\0" not in path and not pure.is_absolute() and ".." not in pure.parts


def _check_store(draft: Draft) -> None:
    url = draft.text("checkpoint", "store")
    if url is None:
        return
    parts = urlsplit(url)
    local = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    remote = parts.scheme in STORE_SCHEMES[1:] and bool(parts.netloc)
    if remote and ("@" in parts.netloc or parts.query or parts.fragment):  # it is shown wherever the job is
        wanted = "one without user, password or query; keys come from the environment"
        draft.add(
            ("checkpoint", "store"), seen=f"a URL with more than {parts.scheme}://PLACE/PREFIX", wanted=wanted
        )
        return
    if not local and not remote:
        schemes = "file:///folder, s3://bucket, az://container or gs://bucket"
        hint = f"did you mean file://{url}?" if url.startswith("/") else ""
        draft.add(("checkpoint", "store"), seen=f'"{url}"', wanted=f"a URL such as {schemes}", hint=hint)
