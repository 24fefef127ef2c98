"""A server that plays Azure: Resource Manager over TLS, Key Vault, managed identity, and a JSON control port.

In a test: `with FakeAzure(folder) as azure`, then `azure.environment` for the program under test.
As a process: `python -m tests.support.clouds.fake_azure FOLDER` prints one line of JSON that says where it
listens, and ends when its standard input is closed.
"""

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType

from tests.support.clouds import certificates
from tests.support.clouds.azure_arm import SUBSCRIPTION, ResourceManager
from tests.support.clouds.azure_bodies import scale_set_body
from tests.support.clouds.azure_http import Answer, Fault, Faults, Json, Request, Server
from tests.support.clouds.azure_world import Refused, Rules, ScaleSet, World, scheduled_events

TOKEN = "token-of-the-fake-azure"


class FakeAzure:
    """The servers and what they share. `locked()` gives the world, brought up to now."""

    def __init__(self, folder: Path, rules: Rules | None = None) -> None:
        self.faults = Faults()
        self.secrets: dict[str, str] = {}
        self.token = TOKEN  # change it, and those handed out before are refused
        self._resources = ResourceManager()
        self._world = World(rules)
        self._lock = threading.RLock()
        self.ca_file, context = certificates.make(folder)
        self._secure = Server(self._answer, self.faults, context)
        self._plain = Server(self._control, Faults())
        self._resources.endpoint = self.endpoint

    def __enter__(self) -> "FakeAzure":
        self._secure.start()
        self._plain.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._secure.stop()
        self._plain.stop()

    @property
    def endpoint(self) -> str:
        """Base URL of Resource Manager, and of the one Key Vault."""
        return f"https://localhost:{self._secure.server_port}"

    @property
    def control(self) -> str:
        """Base URL of `/ctl/...` and of the identity service."""
        return f"http://127.0.0.1:{self._plain.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to come here instead of to Azure."""
        return {
            "VARUNA_AZURE_ENDPOINT": self.endpoint,
            "VARUNA_AZURE_CA": str(self.ca_file),
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": self.control,
            "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
        }

    @property
    def calls(self) -> Counter[str]:
        """How often each action of Azure's access control was used."""
        return Counter(self._resources.calls)

    @contextlib.contextmanager
    def locked(self) -> Iterator[World]:
        """Give the world, brought up to this moment, to look at or to change."""
        with self._lock:
            self._world.advance(time.time())
            yield self._world

    def fail(
        self,
        match: str,
        *,
        times: int = 1,
        status: int = 0,
        code: str = "InternalServerError",
        retry_after_s: float | None = None,
        delay_s: float = 0.0,
        is_lost: bool = False,
        gate: threading.Event | None = None,
    ) -> None:
        """Let requests whose `METHOD /path?query` has a match of `match` go wrong; see Fault."""
        self.faults.add(
            Fault(
                match=match,
                times=times,
                status=status,
                code=code,
                retry_after_s=retry_after_s,
                delay_s=delay_s,
                is_lost=is_lost,
                gate=gate,
            )
        )

    def _answer(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return self._unauthorized()
        with self.locked() as world:
            if request.path.startswith("/secrets/"):
                return self._secret(request)
            return self._resources.answer(world, request)

    def _unauthorized(self) -> Answer:
        where = f'authorization="https://login.microsoftonline.com/test", resource="{self.endpoint}"'
        error = {"code": "InvalidAuthenticationToken", "message": "a token of this Azure is wanted"}
        return Answer(status=401, body={"error": error}, headers=(("WWW-Authenticate", f"Bearer {where}"),))

    def _secret(self, request: Request) -> Answer:
        name = request.path.split("/")[2]
        self._resources.calls[f"Microsoft.KeyVault/vaults/secrets/{request.method}"] += 1
        if request.method == "PUT":
            self.secrets[name] = str(request.body["value"])
        elif name not in self.secrets:
            raise Refused(
                404, "SecretNotFound", f"A secret with (name/id) {name} was not found in this vault"
            )
        shown: Json = {"id": f"{self.endpoint}/secrets/{name}/1", "attributes": {"enabled": True}}
        if request.method == "DELETE":
            del self.secrets[name]
            return Answer(body=shown | {"recoveryId": f"{self.endpoint}/deletedsecrets/{name}"})
        return Answer(body=shown | {"value": self.secrets[name]})

    def _control(self, request: Request) -> Answer:
        """Answer `METHOD /ctl/NAME` with the method `_METHOD_NAME`, and requests for a token."""
        if request.path == "/metadata/identity/oauth2/token":
            return self._identity(request)
        act = getattr(self, f"_{request.method.lower()}_{request.path.removeprefix('/ctl/')}", None)
        if act is None:
            raise Refused(404, "NotFound", f"{request.method} {request.path} is not known here")
        with self.locked() as world:
            return Answer(body=act(world, request.query.get("vm", ""), request.body))

    def _identity(self, request: Request) -> Answer:
        if request.headers.get("metadata") != "true":
            raise Refused(400, "BadRequest", "the header Metadata: true is wanted")
        body: Json = {
            "access_token": self.token,
            "token_type": "Bearer",
            "resource": request.query.get("resource", ""),
            "expires_in": "86400",
            "expires_on": str(int(time.time()) + 86_400),
        }
        return Answer(body=body)

    def _get_vms(self, world: World, vm: str, body: Json) -> list[Json]:
        return [
            {"set": s.name, "is_flexible": s.is_flexible, **asdict(m)}
            for s in world.sets.values()
            for m in s.machines.values()
        ]

    def _get_sets(self, world: World, vm: str, body: Json) -> list[Json]:
        return [scale_set_body(SUBSCRIPTION, s) for s in world.sets.values()]

    def _post_sets(self, world: World, vm: str, body: Json) -> Json:
        """Create a scale set, or change fields of one that is there."""
        name = str(body["name"])
        if name not in world.sets:
            world.add(ScaleSet(**body))  # type: ignore[arg-type]
        for key, value in body.items():
            setattr(world.sets[name], key, value)
        return scale_set_body(SUBSCRIPTION, world.sets[name])

    def _post_rules(self, world: World, vm: str, body: Json) -> Json:
        known = {f.name for f in fields(Rules)}
        if not body.keys() <= known:
            raise Refused(400, "BadRequest", f"known rules: {', '.join(sorted(known))}")
        for key, value in body.items():
            setattr(world.rules, key, value)
        return asdict(world.rules)

    def _get_scheduledevents(self, world: World, vm: str, body: Json) -> Json:
        """What the metadata service of `vm` says: the events of its whole placement group."""
        return scheduled_events(world.find(vm)[0])

    def _post_scheduledevents(self, world: World, vm: str, body: Json) -> Json:
        """What the agent of `vm` posts there: {"StartRequests": [{"EventId": ...}]}."""
        match body:
            case {"StartRequests": list(requests)}:
                world.acknowledge(world.find(vm)[0], [str(r["EventId"]) for r in requests], vm)
                return {}
        raise Refused(400, "BadRequest", "StartRequests are wanted")

    def _post_evict(self, world: World, vm: str, body: Json) -> Json:
        """Evict `vm`, `notice_s` from now; without that at once and without a notice."""
        scale_set, machine = world.find(vm)
        match body:
            case {"notice_s": float() | int() as notice_s}:
                return {"event": world.schedule(scale_set, machine, "Preempt", notice_s).id}
        world.evict(scale_set, machine)
        return {}

    def _post_event(self, world: World, vm: str, body: Json) -> Json:
        """Announce another event: {"kind": "Reboot", "in_s": 900}."""
        scale_set, machine = world.find(vm)
        return {"event": world.schedule(scale_set, machine, str(body["kind"]), float(str(body["in_s"]))).id}

    def _post_withdraw(self, world: World, vm: str, body: Json) -> Json:
        """Take an event back: {"event": ID}."""
        world.withdraw(world.find(vm)[0], str(body["event"]))
        return {}

    def _post_faults(self, world: World, vm: str, body: Json) -> Json:
        self.faults.add(Fault(**body))  # type: ignore[arg-type]
        return {}

    def _delete_faults(self, world: World, vm: str, body: Json) -> Json:
        self.faults.clear()
        return {}

    def _get_calls(self, world: World, vm: str, body: Json) -> Json:
        return dict(self.calls)


def main() -> None:
    """Serve until standard input ends."""
    with FakeAzure(Path(sys.argv[1])) as azure:
        print(json.dumps({"control": azure.control, "environment": azure.environment}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
