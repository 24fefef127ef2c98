"""An answer of a provider -> what is remembered of its pool; tells the core which machines are gone."""

from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading, Trouble
from varuna_manager.core.events import NodeLeft, NodesPlaced, NoticeCancelled, NoticeReceived, Place
from varuna_manager.core.phases import NodePhase
from varuna_manager.core.words import What
from varuna_manager.sizing import shortages
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.decisions import Answer, Failed
from varuna_manager.sizing.memory import PoolMemory
from varuna_manager.sizing.settings import Rules

_SOONER_S = 1.0  # a provider's word on an announced end counts if it is earlier than the agent's by this
_PRICE_TREMBLES = 0.01  # a share of a price below which a change is no news
_NEVER_SAID = "no longer listed by its provider"


def take_in(course: Course, rules: Rules, answer: Answer) -> None:
    """Remember an answer. A failure changes nothing that is known of machines."""
    if isinstance(answer, Failed):
        _take_failure(course, rules, answer)
        return
    course.fresh[rules.pool] = answer
    gone = _report_gone(course, rules, answer)
    _report_notices(course, rules, answer)
    _report_places(course, rules, answer)
    pool = course.pool(rules)
    listed = {m.node: pool.machines.get(m.node, course.now_s) for m in answer.instances if _exists(m)}
    strays = {m.node: pool.strays.get(m.node, course.now_s) for m in answer.instances if m.is_stray}
    kinds = [node.device_kind for node in map(course.node, sorted(listed)) if node is not None]
    joined_new = any(course.node(name) for name in listed if name not in pool.machines)
    course.remember(
        rules,
        reading=answer,
        read_s=course.now_s,
        failed=None,
        failing_since_s=None,
        throttled=0,
        machines=listed,
        strays=strays,
        gone=gone,
        kind=kinds[-1] if kinds else pool.kind,
        boot_failures=0 if joined_new else pool.boot_failures,
        released={n: at_s for n, at_s in pool.released.items() if n in listed},
        tried={n: at_s for n, at_s in pool.tried.items() if n in listed or not n},
        stuck=pool.stuck & listed.keys(),
    )
    _warn(course, rules, answer)
    lost = pool.machines.keys() - listed.keys()
    if rules.is_sized and any(_never_joined(course, pool, name) for name in lost):
        shortages.died_early(course, rules, answer)
    shortages.look(course, rules, answer)


def _never_joined(course: Course, pool: PoolMemory, name: str) -> bool:
    return not (name in course.state.nodes or name in course.state.ending or name in pool.released)


def report_vanished(course: Course) -> None:
    """Tell the core of machines whose end was decided and that no pool lists, once all pools are known."""
    pools = [course.pool(rules) for rules in course.settings.rules]
    if any(pool.reading is None for pool in pools):
        return
    listed = {name for pool in pools for name in pool.machines}
    told = {post.event.node for post in course.posts if isinstance(post.event, NodeLeft)}
    for name in sorted(course.state.ending.keys() - listed - told):
        _left(course, name, _NEVER_SAID, is_machine=True)


def _exists(machine: Instance) -> bool:
    return machine.phase is not InstancePhase.GONE


def _take_failure(course: Course, rules: Rules, failure: Failed) -> None:
    pool = course.pool(rules)
    since_s = course.now_s if pool.failing_since_s is None else pool.failing_since_s
    course.remember(rules, failed=failure, failing_since_s=since_s)
    if failure.trouble is Trouble.THROTTLED:
        keep_quiet(course, rules, failure)


def keep_quiet(course: Course, rules: Rules, failure: Failed) -> None:
    """Do not call the provider before the time it named, or a growing one of ours."""
    pool = course.pool(rules)
    ours_s = min(course.sizing.backoff_cap_s, rules.poll_s * 2.0 ** min(pool.throttled + 1, 16))
    wait_s = ours_s if failure.retry_after_s is None else failure.retry_after_s
    course.remember(rules, quiet_until_s=course.now_s + wait_s, throttled=pool.throttled + 1)


def _report_gone(course: Course, rules: Rules, reading: PoolReading) -> frozenset[str]:
    """The provider's word on existence stands above any heartbeat, also about what it no longer lists.

    Returns the nodes that are gone by its word.
    """
    listed = {machine.node for machine in reading.instances}
    gone = {m.node: m.reason or "gone" for m in reading.instances if not _exists(m)}
    gone |= {name: _NEVER_SAID for name in course.pool(rules).machines if name not in listed}
    for machine in reading.instances:
        is_off = machine.phase is InstancePhase.STOPPED
        node = course.node(machine.node)
        if is_off and node is not None and not node.is_connected:  # two of three agree
            _left(course, machine.node, machine.reason or "stopped", is_machine=False)
    for name, reason in sorted(gone.items()):
        _left(course, name, reason, is_machine=True)
    return frozenset(name for name in gone if course.node(name) is not None)


def _left(course: Course, name: str, reason: str, *, is_machine: bool) -> None:
    node = course.node(name)
    if node is not None or name in course.state.ending:
        incarnation = "" if node is None else node.incarnation
        course.post(
            NodeLeft(
                at_s=course.now_s,
                node=name,
                incarnation=incarnation,
                reason=reason,
                is_machine=is_machine,
            )
        )


def _report_notices(course: Course, rules: Rules, reading: PoolReading) -> None:
    """An end that the provider announces is a notice, as if the agent had heard of it.

    A machine that a hook of its group holds back from ending is only waited for: its work moves at once.
    """
    for machine in reading.instances:
        node = course.node(machine.node)
        if node is None or not _exists(machine) or node.phase is NodePhase.RELEASED:
            continue
        source = f"pool {rules.pool}"  # an agent's own source may be called like the provider
        known_s, ours = node.notice_deadline_s, node.notice_source == source
        at_s = machine.leaves_at_s
        if at_s is not None and (known_s is None or at_s < known_s - _SOONER_S):
            course.post(
                NoticeReceived(
                    at_s=course.now_s,
                    node=node.node,
                    incarnation=node.incarnation,
                    deadline_s=at_s,
                    source=source,
                    is_urgent=machine.phase is InstancePhase.LEAVING,
                )
            )
        elif at_s is None and known_s is not None and ours and machine.phase is InstancePhase.RUNNING:
            course.post(NoticeCancelled(at_s=course.now_s, node=node.node, incarnation=node.incarnation))


def _report_places(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Tell the core where its nodes are and what they cost, when that is news; prices may tremble."""
    price = reading.price if rules.price is None else rules.price
    places = []
    for machine in reading.instances:
        node = course.node(machine.node)
        if node is not None and _exists(machine):
            is_repriced = _differs(node.price_per_hour, price)
            if is_repriced or (node.pool, node.domain) != (rules.pool, machine.zone):
                places.append(Place(node=machine.node, domain=machine.zone))
    if places:
        course.post(
            NodesPlaced(at_s=course.now_s, pool=rules.pool, places=tuple(places), price_per_hour=price)
        )


def _differs(known: float | None, price: float | None) -> bool:
    if known is None or price is None:
        return known is not price
    return abs(price - known) > _PRICE_TREMBLES * known


def _warn(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Tell each setting that a person should change once."""
    new = [warning for warning in reading.warnings if warning not in course.pool(rules).warned]
    for warning in new:
        course.tell(rules, What.POOL_WARNING, warning)
    course.remember(rules, warned=frozenset(reading.warnings))
