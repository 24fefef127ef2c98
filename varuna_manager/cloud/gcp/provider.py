"""The provider of a managed instance group, zonal or regional."""

from collections.abc import Sequence

from varuna_manager.cloud.complaints import Complaints
from varuna_manager.cloud.gcp import group
from varuna_manager.cloud.gcp.errors import first_error
from varuna_manager.cloud.gcp.group import Member
from varuna_manager.cloud.gcp.rest import Json, Rest
from varuna_manager.cloud.opening import Notes
from varuna_manager.cloud.provider import PoolReading, ProviderError, Trouble
from varuna_manager.pool_settings import GcpPool
from varuna_runtime.spec.errors import InvalidInput

_MOST_ZONAL, _MOST_REGIONAL = 1000, 2000
_AT_ONCE = 1000  # instances that one deleteInstances takes
_LABEL = "varuna-cluster"
_OPERATION = "operation"
_PAGE = "500"


class GcpProvider:
    """A node is a VM by its name. The group makes a preempted one anew under the same name.

    Of such a place nothing is listed until the machine is there again. Writes are operations of Compute
    Engine: the open one is noted, so that the next manager knows of it too.
    """

    def __init__(self, settings: GcpPool, rest: Rest, notes: Notes) -> None:
        self._settings = settings
        self._rest = rest
        self._notes = notes
        place = f"zones/{settings.zone}" if settings.zone else f"regions/{settings.region}"
        self._place = f"{settings.project}/{place}"
        self._group_path = f"{place}/instanceGroupManagers/{settings.group}"
        self._group = f"{settings.project}/{self._group_path}"
        self._complaints = Complaints()

    def read(self, now_s: float) -> PoolReading:
        """Ask for the machines before the members: one that joins meanwhile is not taken for a stray."""
        failed = self._settled()
        found = self._rest.get(self._group)
        labelled = self._labelled(found)
        places = self._members()
        desired = int(found.get("targetSize", 0))
        self._complaints.note(desired, now_s)
        short = failed
        if short is None and sum(m.is_machine and not m.is_ending for m in places) < desired:
            errors = list(self._rest.pages("GET", f"{self._group}/listErrors"))
            short = group.shortage(places, errors, self._complaints.after_s(now_s))
        return PoolReading(
            instances=group.instances(places, labelled, self._group_path),
            desired=desired,
            least=0,
            most=_MOST_ZONAL if self._settings.zone else _MOST_REGIONAL,
            shortage=short[0] if short else "",
            shortage_trouble=short[1] if short else None,
            warnings=tuple(group.warnings(found, labelled, places, f"{_LABEL}={self._settings.cluster}")),
            is_writing=self._notes.get(_OPERATION) is not None,
        )

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Raise the target size; refused while it is another than the reading says."""
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: the target size is {seen.desired} already")
        self._check_idle()
        now = int(self._rest.get(self._group).get("targetSize", 0))
        if now != seen.desired:
            raise ProviderError(
                f"the target size is {now} now, not {seen.desired}: not raised", trouble=Trouble.RETRY
            )
        self._begun(self._rest.post(f"{self._group}/resize", size=str(desired)))

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """Delete these machines by name, which lowers the target size by as many."""
        self._check_idle()
        found = self._rest.get(self._group)
        by_name = {member.name: member for member in self._members()}
        strays = {i.node: i for i in seen.instances if i.is_stray}
        known = by_name.keys() | {i.node for i in seen.instances}
        prefix = f"{found.get('baseInstanceName', self._settings.group)}-"
        unknown = sorted(n for n in set(nodes) - known if not n.startswith(prefix))
        if unknown:
            raise InvalidInput(f"no node {', '.join(unknown)} in group {self._settings.group}")
        self._delete([by_name[node] for node in dict.fromkeys(nodes) if node in by_name])
        failed = None  # one that is protected spares no other
        for node in sorted(set(nodes) & strays.keys() - by_name.keys()):
            try:
                self._rest.delete(f"{self._settings.project}/zones/{strays[node].zone}/instances/{node}")
            except ProviderError as err:
                failed = failed or err
        if failed is not None:
            raise failed

    def give_up(self, seen: PoolReading) -> None:
        """Delete the places whose machine does not exist: that lowers the target and ends nothing."""
        self._check_idle()
        self._delete([member for member in self._members() if member.is_awaited])

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: Compute Engine waits for nobody."""

    def close(self) -> None:
        """Close the connections."""
        self._rest.close()

    def _delete(self, places: Sequence[Member]) -> None:
        """Delete those the group does not delete already; one more time would lower the target again."""
        urls = [member.url for member in places if not member.is_ending]
        if urls:
            body = {"instances": urls[:_AT_ONCE], "skipInstancesOnValidationError": True}
            self._begun(self._rest.post(f"{self._group}/deleteInstances", body))
        if len(urls) > _AT_ONCE:
            raise ProviderError(
                f"{len(urls) - _AT_ONCE} more nodes to end than one call takes", trouble=Trouble.RETRY
            )

    def _members(self) -> tuple[Member, ...]:
        pages = self._rest.pages("POST", f"{self._group}/listManagedInstances", maxResults=_PAGE)
        return group.members(list(pages))

    def _labelled(self, found: Json) -> tuple[Json, ...]:
        """Return the machines with our label in the zones of the group: no other zone can spoil a reading."""
        wanted = {"filter": f"labels.{_LABEL}={self._settings.cluster}", "maxResults": _PAGE}
        zones = [self._settings.zone] if self._settings.zone else group.zones(found)
        paths = [f"{self._settings.project}/zones/{zone}/instances" for zone in zones]
        pages = [page for path in paths for page in self._rest.pages("GET", path, **wanted)]
        return tuple(machine for page in pages for machine in page.get("items", ()))

    def _begun(self, operation: Json) -> None:
        failed = first_error(operation)
        if failed is not None:
            raise ProviderError(failed[0], trouble=failed[1])
        if operation.get("status") != "DONE":
            self._notes.put(_OPERATION, str(operation.get("name", "")))

    def _check_idle(self) -> None:
        failed = self._settled()
        if self._notes.get(_OPERATION) is not None:
            raise ProviderError("an earlier write is still under way", trouble=Trouble.RETRY)
        if failed is not None:
            raise ProviderError(f"the last write failed: {failed[0]}", trouble=failed[1])

    def _settled(self) -> tuple[str, Trouble] | None:
        """Forget the open write once it is over, and return why it failed, if it did."""
        noted = self._notes.get(_OPERATION)
        if noted is None:
            return None
        try:
            operation = self._rest.get(f"{self._place}/operations/{noted}")
        except ProviderError as err:
            if err.trouble is not Trouble.CONFIG:
                raise
            operation = {"status": "DONE"}  # old operations are forgotten; the group itself tells the rest
        if operation.get("status") != "DONE":
            return None
        self._notes.remove(_OPERATION)
        return first_error(operation)
