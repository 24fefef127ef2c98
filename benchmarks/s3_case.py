"""C4: saves to and loads from an S3 server on this machine, against plain puts and gets of the same bytes."""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.disk_cases import NUM_RANKS, OURS, rows_of, settings_of
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Samples
from benchmarks.options import Options
from benchmarks.saved_state import JOB, Saves, Size, filled, flat
from benchmarks.testbed import Loopback, Place, Ranks, Runner, in_turns
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.shards import ShardLabel
from varuna_runtime.checkpoint.tensors import encode, iter_tensors
from varuna_runtime.store import open_store

ROUNDS = 9
SIZE = Size(segments=2, params=2)  # the server is slow
BUCKET, BOTO = "benchmark", "boto3"


def c4(options: Options) -> Case:
    """Measure saves and loads; the server, in Python, is what binds both sides."""
    case = Case(name="C4", title="S3, by moto", settings=settings_of(SIZE))
    with _server() as url, Ranks(Loopback(NUM_RANKS), _build(url), timeout_s=300.0) as ranks:
        for kind, target in (("save", 0.8), ("load", 0.7)):
            names = [f"{BOTO} {kind}", f"{OURS} {kind}"]
            samples = Samples()
            for name in names:
                ranks.run(name)
            for round_, name, run in in_turns(ranks, names, options.rounds(ROUNDS)):
                options.keep(samples, round_, name, run)
                ranks.run("tidy")
            case.rows += rows_of(samples, SIZE)
            speed = samples.speedup(names[1], names[0])
            text = f"speed of our {kind} / boto3 {'put' if kind == 'save' else 'get'}"
            case.claims.append(Claim(text=text, value=speed, target=target))
            case.notes.append(f"{kind}: {samples.noise()}.")
    case.notes.append(
        "boto3 puts and gets one object a segment of the same size, one after the other, as bytes; it "
        "neither checks them against a manifest nor brings them into tensors."
    )
    return case


@contextmanager
def _server() -> Iterator[str]:
    double: Any = importlib.import_module("tests.support.clouds.moto")
    with double.Moto() as moto:
        os.environ.update({**double.IDENTITY, "AWS_ENDPOINT_URL": moto.url, "AWS_ALLOW_HTTP": "true"})
        moto.client("s3").create_bucket(Bucket=BUCKET)
        yield moto.url


def _build(url: str) -> Callable[[Place], Mapping[str, Runner]]:
    def build(place: Place) -> Mapping[str, Runner]:
        import boto3

        joined = Joined.at(place)
        client: Any = boto3.client("s3", endpoint_url=url)
        store = open_store(f"s3://{BUCKET}/ours")
        saves = Saves(joined, store, SIZE)
        tensors = filled(SIZE, place.rank)
        wanted = {name: float(tensor.sum()) for name, tensor in flat(tensors).items()}
        objects = {
            f"plain/{segment}": encode(
                ShardLabel(job=JOB, step=1, generation=1, segment=segment, part=0), held
            )
            for segment, held in tensors.items()
        }

        def tidy(_: int) -> None:
            if place.rank == 0:
                last = f"jobs/{JOB}/checkpoints/{saves.step:012d}/"
                store.delete(key for key in store.list(f"jobs/{JOB}") if not key.startswith(last))

        def put(_: int) -> None:
            for key, data in objects.items():
                client.put_object(Bucket=BUCKET, Key=key, Body=data)

        def get(_: int) -> None:
            for key, data in objects.items():
                body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
                assert len(body) == len(data)

        def load(_: int) -> None:
            targets = flat(tensors)
            for tensor in targets.values():
                tensor.view(-1)[:1].zero_()
            manifest = read_manifest(store, JOB, saves.step)
            for _pair in iter_tensors(store, manifest, list(tensors), targets):
                pass
            assert {name: float(tensor.sum()) for name, tensor in targets.items()} == wanted

        return {
            f"{BOTO} save": put,
            f"{OURS} save": lambda _: saves.save(tensors),
            f"{BOTO} load": get,
            f"{OURS} load": load,
            "tidy": tidy,
        }

    return build
