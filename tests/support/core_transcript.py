"""Plays scenario transcripts: `> command` lines, each followed by what the core announced and wanted done.

`python -m tests.support.core_transcript FILE...` writes the files anew; read the difference first.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.core_invariants import check
from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.step import replay
from varuna_runtime.spec.generation import Cause


class _CheckedSim(Sim):
    def _one(self, event: e.AnyEvent) -> None:
        before, count = self.state, len(self.actions)
        super()._one(event)
        check(before, self.state, self.actions[count:])


def play(text: str) -> str:
    """Return the transcript with the answers of today's core; comments and empty lines stay."""
    sim = _CheckedSim()
    sim.actions.clear()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            out += [line, *_run(sim, line[2:].split())]
        elif line.startswith("#") or not line.strip():
            out.append(line)
    return "\n".join(out) + "\n"


def _run(sim: Sim, words: list[str]) -> list[str]:
    before = sim.state
    _command(sim, words[0], words[1:])
    assert replay(sim.journal, sim.config) == sim.state.durable(), "the replay differs"
    lines = [f"  {line}" for action in sim.actions if (line := _describe(action))]
    sim.actions.clear()
    for name, job in sim.state.jobs.items():
        old = before.jobs.get(name)
        if old is None or (old.phase, old.generation) != (job.phase, job.generation):
            layout = f" {job.run.plan.layout}" if job.run else ""
            lines.append(f"  = {name} {job.phase} g{job.generation}{layout}")
    return lines


def _command(sim: Sim, word: str, args: list[str]) -> None:
    simple: dict[str, Callable[..., None]] = {
        "hold": sim.hold,
        "release": sim.release,
        "restart": sim.restart,
        "return": sim.return_all,
        "finish": sim.finish,
        "cancel": sim.cancel,
    }
    per_node: dict[str, Callable[[str], None]] = {
        "join": sim.join,
        "rejoin": sim.rejoin,
        "disconnect": sim.disconnect,
        "kill": sim.kill,
        "left": sim.left,
        "freeze": sim.freeze,
        "thaw": sim.thaw,
        "drain": sim.drain,
        "drop": sim.drop,
        "cancel-notice": sim.cancel_notice,
    }
    if word in simple:
        simple[word](*args)
    elif word in per_node:
        for node in args:
            per_node[word](node)
    else:
        _with_numbers(sim, word, args)


def _with_numbers(sim: Sim, word: str, args: list[str]) -> None:
    match word, args:
        case "pass", [seconds]:
            sim.pass_time(float(seconds))
        case "join-kind", [kind, *nodes]:
            for node in nodes:
                sim.join(node, kind=kind)
        case "join-broken", nodes:
            for node in nodes:
                sim.join(node, can_warm=False)
        case "notice", [node, seconds]:
            sim.notice(node, float(seconds))
        case "train", [job, steps]:
            sim.train(job, int(steps))
        case "durable", [job, *steps]:
            sim.durable(job, int(steps[0]) if steps else None)
        case "fail", [job, rank, cause, *message]:
            sim.fail(job, int(rank), Cause(cause), " ".join(message))
        case "save-failed", [job, *reason]:
            sim.save_failed(job, " ".join(reason))
        case "vaults", []:
            sim.has_vaults = True
        case "lose-store", []:
            sim.has_store = False
        case "pipelines", []:
            sim.has_pipelines = True
        case "urgent-notice", [node, seconds]:
            sim.notice(node, float(seconds), is_urgent=True)
        case "feasible", [answer]:
            sim.is_feasible = answer == "yes"
        case "submit", [job, *fields]:
            sim.submit(job, **dict(_field(f) for f in fields))
        case _:
            raise AssertionError(f"unknown command: {word} {args}")


def _field(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, float(value) if name.endswith("_s") else int(value)


def _describe(action: a.AnyAction) -> str:
    match action:
        case a.Announce():
            subject = " ".join(word for word in (action.job, action.node) if word)
            return " ".join(word for word in (action.what, subject) if word) + f": {action.why}"
        case a.FindProfile():
            return f"-> FindProfile {action.job} for {action.device_kind}"
        case a.MakePlan():
            nodes = " ".join(n.node for n in action.request.nodes)
            return f"-> MakePlan {action.job} pool {action.pool_version}: {nodes}"
        case a.StartRanks():
            ranks = " ".join(map(str, action.ranks))
            resume = "-" if action.resume_step is None else action.resume_step
            return f"-> Start {action.kind} {_to(action)} ranks {ranks} resume {resume}{_copies(action)}"
        case a.WarmNode():
            return f"-> Warm {action.incarnation} {action.job}"
        case a.DrainRanks():
            where = "" if action.persist else ", in memory"
            return f"-> Drain {_to(action)} within {action.within_s:g} s{where}"
        case a.ActivateRanks(resume=version) if version is not None and version.generation:
            return f"-> Activate {_to(action)} from step {version.step} of g{version.generation}"
        case a.RetireCopies():
            return f"-> Retire {action.incarnation} {action.job} before g{action.generation}"
        case a.ActivateRanks() | a.AbortRanks():
            return f"-> {type(action).__name__.removesuffix('Ranks')} {_to(action)}"
        case a.ForgetJob():
            return f"-> Forget {action.incarnation} {action.job}"
        case a.ReleaseNode() | a.FenceNode():
            return f"-> {type(action).__name__.removesuffix('Node')} {action.incarnation}: {action.reason}"
        case a.RaiseDurable(event=e.DeadlinePassed() as passed):
            return f"-> raise {passed.subject} {passed.deadline_s:g}"
        case a.RaiseDurable():
            return f"-> raise {type(action.event).__name__}"


def _copies(action: a.StartRanks) -> str:
    vaults = " ".join(vault.node for vault in action.vaults)
    buddies = " ".join(
        f"{rank}:{vault.node}" for rank, vaults in sorted(action.buddies.items()) for vault in vaults
    )
    return (f", vaults {vaults}" if vaults else "") + (f", buddies {buddies}" if buddies else "")


def _to(action: a.StartRanks | a.DrainRanks | a.ActivateRanks | a.AbortRanks) -> str:
    return f"{action.incarnation} {action.job} g{action.generation}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(play(path.read_text()))
