"""What `varuna pools` shows, and where `varuna nodes` names a pool."""

import dataclasses

from rich.console import Console

from tests.unit.cli.test_documents import NODE, POOL
from varuna_manager.cli.nodes import node_table
from varuna_manager.cli.pools import pool_table


def shown(table: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_pool_is_shown_with_its_counts_its_price_and_why_it_is_short() -> None:
    short = dataclasses.replace(
        POOL, price=0.526, reason="asked for 4, has 2: InsufficientInstanceCapacity", retry_in_s=60.0
    )
    text = shown(pool_table((short,)))
    assert "spot  aws" in text
    assert "$0.526/h" in text
    assert "InsufficientInstanceCapacity; next try in 60 s" in text


def test_a_pool_that_never_answered_says_so() -> None:
    assert "never" in shown(pool_table((dataclasses.replace(POOL, read_ago_s=-1.0),)))


def test_nodes_name_their_pool_where_there_are_several() -> None:
    other = dataclasses.replace(NODE, node="i-1", pool="spot")
    assert "POOL" not in shown(node_table((NODE,)))
    text = shown(node_table((NODE, other)))
    assert "POOL" in text
    assert "i-1" in text.split("spot")[0]


def test_a_phase_that_no_machine_is_in_takes_no_column() -> None:
    still = dataclasses.replace(POOL, starting=0, leaving=0, stopped=0)
    assert "STARTING" not in shown(pool_table((still,)))
    assert "STARTING" in shown(pool_table((still, dataclasses.replace(still, starting=2))))
