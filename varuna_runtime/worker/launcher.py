"""Runs the user's script up to its call of `train`, then forks one worker per rank and generation.

`python -m varuna_runtime.worker.launcher --fd N`, started by the agent. It opens no channel and no process
group, keeps to one thread, and never touches a CUDA context: a fork must inherit none of these.
"""

import argparse
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import DataHangs, ModelRefused
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.vault.lifeline import die_with
from varuna_runtime.wire import launch
from varuna_runtime.worker import lifeline
from varuna_runtime.worker.forking import ForkServer
from varuna_runtime.worker.lines import LineSocket

if TYPE_CHECKING:
    from varuna_runtime.worker.training import Training

_DETAIL_CHARS = 8000


class LauncherHost:
    """Holds the script at `train` and serves forks; does not return to the script."""

    def __init__(self, agent: LineSocket, spec: JobSpec) -> None:
        self._agent = agent
        self._spec = spec

    def run(self, training: "Training") -> NoReturn:
        """Warm up, cut the model once, serve until the agent closes the socket."""
        from varuna_runtime.worker.forkable import refuse_unforkable
        from varuna_runtime.worker.partitioning import example_in_child, partition_of
        from varuna_runtime.worker.process import run as run_worker

        _warm_up()
        within_s = self._spec.hang_timeout_s
        partitioned = partition_of(training, example=lambda t: example_in_child(t, within_s=within_s))
        refuse_unforkable()
        _tell_foreign_threads()

        def work(request: launch.ForkRank) -> NoReturn:
            run_worker(request, training, partitioned)

        gc.collect()
        gc.freeze()  # keep the collector from touching, and so copying, every shared page in each child
        self._agent.send(launch.ScriptHeld())
        ForkServer(self._agent, work).serve()
        os._exit(0)


def main(argv: list[str]) -> NoReturn:
    """Entry point; its exit status is of no interest, the messages are."""
    parser = argparse.ArgumentParser(prog="varuna_runtime.worker.launcher")
    parser.add_argument("--fd", type=int, required=True, help="socket to the agent")
    parser.add_argument("--agent", type=int, required=True, help="pid of the agent")
    arguments = parser.parse_args(argv)
    die_with(arguments.agent)
    lifeline.adopt_orphans()  # from the start: what the script leaves behind stays below this process
    agent = LineSocket(socket.socket(fileno=arguments.fd))
    os.set_inheritable(agent.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    failure = _run(agent, _first_order(agent))
    sys.stdout.flush()
    sys.stderr.flush()
    agent.send(failure)
    os._exit(1)


def _first_order(agent: LineSocket) -> launch.RunScript:
    while True:
        messages = agent.receive()
        if messages is None:
            os._exit(0)
        if messages:
            order = messages[0]
            assert isinstance(order, launch.RunScript)
            return order


def _run(agent: LineSocket, order: launch.RunScript) -> launch.ScriptFailed:
    """Run the script; it comes back only if it never reached `train` or failed before it was held."""
    from varuna_runtime.worker.script import run_script

    host = LauncherHost(agent, canonical.loads(JobSpec, order.job_json))
    workdir = Path(order.workdir)
    try:
        run_script(Path(order.entrypoint), order.args, workdir, host)
    except (Exception, SystemExit, KeyboardInterrupt) as err:  # the boundary to the user's code
        traceback.print_exc()
        return _failure(err)
    return launch.ScriptFailed(
        message=f"{order.entrypoint} ended without calling varuna.train()",
        detail="",
    )


def _failure(err: BaseException) -> launch.ScriptFailed:
    detail = "".join(traceback.format_exception(err))[-_DETAIL_CHARS:]
    if isinstance(err, SystemExit):
        message = f"the script called sys.exit({err.code!r}) before varuna.train()"
    elif isinstance(err, ModelRefused):
        message = f"the model is refused: {err}"
    else:
        message = f"{type(err).__name__}: {err}"
    is_hang = isinstance(err, DataHangs)
    return launch.ScriptFailed(message=message.splitlines()[0], detail=detail, is_hang=is_hang)


def _warm_up() -> None:
    """Import what every worker needs and run one optimizer step, so that forks start in milliseconds.

    One thread from the first operation on: an OpenMP pool does not survive a fork.
    """
    import torch

    from varuna_runtime.spec.copies import CopyRecord
    from varuna_runtime.spec.layout import Plan
    from varuna_runtime.spec.model import ModelRecord
    from varuna_runtime.vault.messages import Reply, Request

    canonical.make_ready(Plan, ModelRecord, CopyRecord, Reply, Request)  # 3 ms of a worker's start each

    # Imported only; a channel or server opened here would hang the children.
    importlib.import_module("varuna_runtime.worker.service")
    importlib.import_module("varuna_runtime.worker.train_rank")
    importlib.import_module("varuna_runtime.worker.profile_rank")
    importlib.import_module("grpc._server")  # these two are loaded by the first call of a worker otherwise
    importlib.import_module("numpy.ma")

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weight], foreach=False)
    weight.grad = torch.ones(2)
    optimizer.step()


def _tell_foreign_threads() -> None:
    num_foreign = lifeline.num_threads() - 1
    if num_foreign > 0:
        print(  # noqa: T201  the launcher's output is a log file
            f"varuna: a library the script imported runs {num_foreign} threads of its own; "
            "forked workers do not have them",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
