"""`varuna nodes` and `varuna drain`."""

import click
from rich.console import RenderableType

from varuna_manager.cli.connect import connect, user_name
from varuna_manager.cli.documents import node_document
from varuna_manager.cli.options import examples, json_option, manager_option
from varuna_manager.cli.output import console, print_json, seconds
from varuna_manager.cli.tables import table
from varuna_manager.client import Copies, NodeStatus


@click.command(epilog=examples("varuna nodes"))
@json_option
@manager_option
def nodes(*, as_json: bool, manager: str | None) -> None:
    """Show the nodes the manager knows."""
    with connect(manager) as client:
        found = client.nodes()
    if as_json:
        print_json([node_document(node) for node in found])
    else:
        console().print(node_table(found))


@click.command(epilog=examples("varuna drain local-2"))
@click.argument("node")
@manager_option
def drain(node: str, *, manager: str | None) -> None:
    """Move the work off a node and let it leave."""
    with connect(manager) as client:
        client.drain(node, user=user_name())
    click.echo(f"{node} drains; `varuna nodes` shows when it has left")


def node_table(found: tuple[NodeStatus, ...]) -> RenderableType:
    """Return the nodes as a table."""
    if not found:
        return "no nodes; `varuna pools` shows who lends some, and `varuna up -n 4` starts local ones"
    columns = ("NODE", "STATE", ">SLOTS", "DEVICE", "JOB", "RANKS", "VANISHES IN", "COPIES", ">PID", "REASON")
    rows = [_row(node) for node in sorted(found, key=lambda n: n.node)]
    if len({node.pool for node in found}) <= 1:
        return table(columns, rows)
    pools = [node.pool for node in sorted(found, key=lambda n: n.node)]
    with_pools = [(row[0], pool, *row[1:]) for row, pool in zip(rows, pools, strict=True)]
    return table((columns[0], "POOL", *columns[1:]), with_pools)


def _row(node: NodeStatus) -> tuple[object, ...]:
    ranks = ",".join(str(rank) for rank in node.ranks)
    notice = seconds(node.notice_in_s) if node.notice_in_s >= 0 else ""
    copies = ", ".join(held_text(held) for held in node.copies)
    head = (node.node, node.state, node.slots, node.device_kind, node.job, ranks, notice)
    return (*head, copies, node.pid, node.reason)


def held_text(held: Copies) -> str:
    """Return e.g. `0-3,7@5/120`: segments, generation and newest complete step."""
    step = held.step if held.step >= 0 else "-"
    return f"{runs(held.segments)}@{held.generation}/{step}"


def runs(numbers: tuple[int, ...]) -> str:
    """Return ascending numbers with neighbours drawn together, e.g. `0-3,7`."""
    ends = [i for i, n in enumerate(numbers) if i + 1 == len(numbers) or numbers[i + 1] != n + 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    pairs = [(numbers[first], numbers[last]) for first, last in zip(starts, ends, strict=False)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)
