"""Every rank of drawn combinations as a process of its own, over the link that jobs use.

`python -m tests.support.combination_main FOLDER SEED...`: one process imports torch and cuts the models, then
forks the ranks of one combination after the other. FOLDER/SEED.RANK holds what a rank ended with.
"""

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import torch

from tests.support.combinations import NUM_STEPS, TOYS, Combination, Examples
from tests.support.fleet import settings_of
from tests.support.rank_main import meet
from varuna_runtime.spec.layout import Plan
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.dist import DistLink
from varuna_runtime.worker.link.group import form_group

EXAMPLES = Examples(TOYS)


def run_rank(folder: Path, seed: int, rank: int, drawn: Combination, plan: Plan) -> None:
    training = EXAMPLES.training(drawn.model, drawn.batch.batch_size)
    model = EXAMPLES.model(drawn.model)
    link = link_of(folder / str(seed), rank, plan)
    settings = settings_of(training, drawn.batch, precision=drawn.precision)
    engine = RankEngine(training, settings, model, plan, link)
    losses = [engine.run_step().loss for _ in range(NUM_STEPS)]
    state = engine.state()
    link.close()
    tensors = {name: t for of_segment in state.segments.values() for name, t in of_segment.items()}
    torch.save({"losses": losses, "tensors": tensors}, folder / f"{seed}.{rank}")


def link_of(folder: Path, rank: int, plan: Plan) -> Link:
    """Connect a rank with its peers."""
    group = form_group(
        rank=rank,
        world_size=plan.layout.world_size,
        host="127.0.0.1",
        store=meet(folder, rank),
        generation=1,
        timeout_s=60.0,
    )
    everyone = [other for other in range(plan.layout.world_size) if other != rank]
    return DistLink(group, everyone)


def fork_ranks(folder: Path, seed: int) -> None:
    """Run a combination to its end; a rank that failed leaves its traceback in place of its results."""
    drawn = EXAMPLES.drawn(seed)
    plan = EXAMPLES.plan(drawn)
    (folder / str(seed)).mkdir()
    children = []
    for rank in range(plan.layout.world_size):
        if child := os.fork():
            children.append(child)
            continue
        try:
            run_rank(folder, seed, rank, drawn, plan)
        except BaseException:
            (folder / f"{seed}.{rank}.failed").write_text(traceback.format_exc())
        finally:
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what a first optimizer imports
    for word in sys.argv[2:]:
        fork_ranks(Path(sys.argv[1]), int(word))
