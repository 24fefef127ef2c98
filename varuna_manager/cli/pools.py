"""`varuna pools`."""

import click
from rich.console import RenderableType

from varuna_manager.cli.connect import connect
from varuna_manager.cli.documents import pool_document
from varuna_manager.cli.options import examples, json_option, manager_option
from varuna_manager.cli.output import console, print_json, seconds
from varuna_manager.cli.plain import plain
from varuna_manager.cli.tables import table
from varuna_manager.client import PoolStatus


@click.command(epilog=examples("varuna pools", "varuna pools --json | jq '.[].reason'"))
@json_option
@manager_option
def pools(*, as_json: bool, manager: str | None) -> None:
    """Show the pools that lend nodes, and why one does not."""
    with connect(manager) as client:
        found = client.pools()
    if as_json:
        print_json([pool_document(pool) for pool in found])
        return
    console().print(pool_table(found))
    for pool in found:
        for warning in pool.warnings:
            click.echo(plain(f"pool {pool.pool}: {warning}"))


def pool_table(found: tuple[PoolStatus, ...]) -> RenderableType:
    """Return the pools as a table."""
    columns = ("POOL", "PROVIDER", ">WANTED", ">RUNNING", ">STARTING", ">LEAVING", ">STOPPED", ">MIN", ">MAX")
    return table((*columns, ">PRICE", ">READ", "REASON"), [_row(pool) for pool in found])


def _row(pool: PoolStatus) -> tuple[object, ...]:
    price = f"${pool.price:.4g}/h" if pool.price >= 0 else ""
    read = f"{seconds(pool.read_ago_s)} ago" if pool.read_ago_s >= 0 else "never"
    next_try = f"; next try in {seconds(pool.retry_in_s)}" if pool.retry_in_s >= 0 else ""
    passing = (
        count or "" for count in (pool.starting, pool.leaving, pool.stopped)
    )  # mostly no column at all
    counts = (pool.wanted, pool.running, *passing, pool.min, pool.max)
    return (pool.pool, pool.provider, *counts, price, read, pool.reason + next_try)
