"""A manager that starts and ends the nodes of this machine itself, with real processes."""

from pathlib import Path

from tests.support.pool import copy_job, pool, wait_until

SETTINGS = """\
pools:
  - name: first
    provider: local
    sized: true
    max: 1
sizing:
  poll_s: 0.5
  idle_release_s: 2.0
"""


def test_nodes_come_with_a_job_and_go_after_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = tmp_path / "manager.yaml"
    settings.write_text(SETTINGS)
    with pool(home) as varuna:
        varuna.up(0, "--config", str(settings))
        assert varuna.json("nodes") == []
        job = varuna.submit(copy_job("tiny", tmp_path / "job"))
        assert varuna.wait_end(job)["state"] == "succeeded", varuna.trail(job)
        (found,) = varuna.json("pools")
        assert (found["pool"], found["provider"], found["max"]) == ("first", "local", 1)
        wait_until(lambda: not varuna.node_pids(), "the node was not ended after its idle time", timeout=60)
        lines = [str(event["what"]) for event in varuna.json("events")]
        assert lines.count("pool-grows") == 1
        assert {"node-cordoned", "node-released"} <= set(lines)  # its process may end before the pool ends it


def test_a_job_that_needs_more_than_there_can_be_says_so_and_buys_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = tmp_path / "manager.yaml"
    settings.write_text(SETTINGS)
    with pool(home) as varuna:
        varuna.up(0, "--config", str(settings))
        job = varuna.submit(copy_job("tiny", tmp_path / "job", nodes="{min: 2, max: 5}"))
        reason = varuna.wait(job, lambda status: "pool first" in str(status["reason"]), timeout=60)["reason"]
        assert reason == (
            f"waiting for nodes: 0 usable, nodes.min is 2; pool first: job {job} needs 2 nodes; "
            "bounds and max_price allow 1"
        )
        assert varuna.json("nodes") == []
        varuna.run("cancel", job)
