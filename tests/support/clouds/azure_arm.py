"""Resource Manager of the fake Azure: from requests to the world and back, as the SDK speaks."""

import re
from collections import Counter
from urllib.parse import quote, urlencode

from tests.support.clouds.azure_bodies import machine_body, operation_body, scale_set_body, set_id
from tests.support.clouds.azure_http import Answer, Json, Request
from tests.support.clouds.azure_world import Operation, Refused, ScaleSet, World

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
_COMPUTE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/(?P<group>[^/]+)/providers/Microsoft.Compute"
_SET = f"{_COMPUTE}/virtualMachineScaleSets/(?P<set>[^/]+)"
_PLACE = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/westeurope"

ROUTES = (
    ("GET", _SET, "_get_set", "virtualMachineScaleSets/read"),
    ("PATCH", _SET, "_patch_set", "virtualMachineScaleSets/write"),
    ("GET", f"{_SET}/virtualMachines", "_list_instances", "virtualMachineScaleSets/virtualMachines/read"),
    ("POST", f"{_SET}/delete", "_delete_instances", "virtualMachineScaleSets/delete/action"),
    (
        "POST",
        f"{_SET}/virtualMachines/(?P<id>[^/]+)/simulateEviction",
        "_simulate_eviction",
        "virtualMachineScaleSets/virtualMachines/simulateEviction/action",
    ),
    ("GET", f"{_COMPUTE}/virtualMachines", "_list_machines", "virtualMachines/read"),
    ("DELETE", f"{_COMPUTE}/virtualMachines/(?P<machine>[^/]+)", "_delete_machine", "virtualMachines/delete"),
    ("GET", f"{_PLACE}/operations/(?P<operation>[^/]+)", "_get_operation", "locations/operations/read"),
)
"""Method, path, what answers, and the action of Azure's access control below Microsoft.Compute."""

At = dict[str, str]


class ResourceManager:
    """Answers requests about a world; `endpoint` is where it is reached. The caller holds the lock."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.calls: Counter[str] = Counter()  # by action

    def answer(self, world: World, request: Request) -> Answer:
        """Answer one request, or raise Refused."""
        for method, pattern, name, action in ROUTES:
            found = re.fullmatch(pattern, request.path, re.IGNORECASE)
            if found and method == request.method:
                self.calls[f"Microsoft.Compute/{action}"] += 1
                answer: Answer = getattr(self, name)(world, found.groupdict(), request)
                return answer
        raise Refused(404, "InvalidResourceType", f"{request.method} {request.path} is not known here")

    def _get_set(self, world: World, at: At, request: Request) -> Answer:
        return Answer(body=scale_set_body(SUBSCRIPTION, _find(world, at)))

    def _patch_set(self, world: World, at: At, request: Request) -> Answer:
        scale_set = _find(world, at)
        match request.body:
            case {"sku": {"capacity": int(capacity), **other}} if not other and len(request.body) == 1:
                operation = world.set_capacity(scale_set, capacity, request.headers.get("if-match"))
            case _:
                raise Refused(400, "InvalidParameter", f"only sku.capacity can change here: {request.body}")
        return Answer(body=scale_set_body(SUBSCRIPTION, scale_set), headers=self._handles(operation))

    def _list_instances(self, world: World, at: At, request: Request) -> Answer:
        scale_set = _find(world, at)
        if scale_set.is_flexible:
            raise Refused(400, "InvalidParameter", "a Flexible scale set has no such instances")
        return self._page(world, scale_set, request)

    def _list_machines(self, world: World, at: At, request: Request) -> Answer:
        asked = request.query.get("$filter", "")
        found = re.fullmatch(r"'virtualMachineScaleSet/id' eq '?([^']+)'?", asked)
        if not found:
            raise Refused(400, "InvalidParameter", f"the filter {asked!r} is not understood")
        scale_set = _find(world, {"set": found[1].rsplit("/", 1)[1], "group": at["group"]})
        if found[1].lower() != set_id(SUBSCRIPTION, scale_set).lower():
            raise Refused(400, "InvalidParameter", f"the filter {asked!r} names no scale set of this group")
        if not scale_set.is_flexible:
            return Answer(body={"value": []})
        return self._page(world, scale_set, request)

    def _page(self, world: World, scale_set: ScaleSet, request: Request) -> Answer:
        machines = list(scale_set.machines.values())
        start = int(request.query.get("$skiptoken", 0))
        end = start + world.rules.page_size
        has_view = request.query.get("$expand") == "instanceView"
        body: Json = {
            "value": [
                machine_body(SUBSCRIPTION, scale_set, m, has_view=has_view) for m in machines[start:end]
            ]
        }
        if end < len(machines):
            query = urlencode({**request.query, "$skiptoken": str(end)}, quote_via=quote)
            body["nextLink"] = f"{self.endpoint}{request.path}?{query}"
        return Answer(body=body)

    def _delete_instances(self, world: World, at: At, request: Request) -> Answer:
        match request.body:
            case {"instanceIds": list(ids)}:
                operation = world.delete(_find(world, at), [str(i) for i in ids])
                return Answer(status=202, headers=self._handles(operation))
        raise Refused(400, "InvalidParameter", "instanceIds are wanted")

    def _delete_machine(self, world: World, at: At, request: Request) -> Answer:
        scale_set, machine = world.find(at["machine"])
        return Answer(status=202, headers=self._handles(world.delete(scale_set, [machine.id])))

    def _simulate_eviction(self, world: World, at: At, request: Request) -> Answer:
        scale_set = _find(world, at)
        world.schedule(scale_set, scale_set.machines[at["id"]], "Preempt", 30.0)
        return Answer(status=204)

    def _get_operation(self, world: World, at: At, request: Request) -> Answer:
        return Answer(body=operation_body(world.operation(at["operation"])))

    def _handles(self, operation: Operation) -> tuple[tuple[str, str], ...]:
        url = f"{self.endpoint}{_PLACE}/operations/{operation.id}?api-version=2026-04-01"
        return (("Azure-AsyncOperation", url), ("Location", url), ("Retry-After", "10"))


def _find(world: World, at: At) -> ScaleSet:
    found = world.sets.get(at["set"])
    if found is None or found.resource_group.lower() != at["group"].lower():
        what = f"Microsoft.Compute/virtualMachineScaleSets/{at['set']}"
        raise Refused(404, "ResourceNotFound", f"The Resource '{what}' was not found in {at['group']}.")
    return found
