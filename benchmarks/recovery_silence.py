"""R3: a node falls silent without being closed; and load that must not look like it."""

import random
import signal
import time

from benchmarks import silence
from benchmarks.measure import Case, Claim, Spread
from benchmarks.options import Options
from benchmarks.recovery_losses import SUBJECT
from benchmarks.recovery_network import Network
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import ForeignLoad, kill, tree
from benchmarks.recovery_tally import Tally, aim, finish

FROZEN, CUT = "ours, SIGSTOP of a node", "ours, link of a node down"
JOB = {"nodes": "{min: 1, max: 2}", "layout": "{stages: 1}"}


def r3(options: Options, minutes: float) -> Case:
    """Frozen nodes, cut links, and busy cores."""
    case = Case(
        name="R3",
        title="silent loss of a node, to the first newly committed step; false verdicts",
        settings=f"{SUBJECT}; two replicas on two nodes; false verdicts: `benchmarks.silence` for "
        f"{minutes:g} minutes",
    )
    tally, draw = Tally(options), random.Random(3)
    rounds = options.rounds(2)
    with Pool(nodes=2) as pool:
        two_trainings = _frozen(pool, tally, draw, rounds)
    with Network(2) as network:
        _cut(network, tally, draw, rounds)
    false_verdicts = _busy(case, options, minutes)
    case.claims += [
        *tally.within(FROZEN, 2.0),
        *tally.within(CUT, 2.0),
        _none("steps of a thawed node", two_trainings),
        _none("false verdicts", false_verdicts),
    ]
    case.notes.append(
        "no peer was measured here: gloo's documented default is to wait 30 minutes for a silent rank, "
        "torchft waits for its heartbeat's time-out"
    )
    return finish(case, tally)


def _frozen(pool: Pool, tally: Tally, draw: random.Random, rounds: int) -> int:
    """Return how many steps frozen nodes still made after they were thawed."""
    found = 0
    for _ in range(rounds):
        pool.submit(**JOB)
        life = pool.settle("1x2")
        step_s = aim(pool.stamps, draw)
        pids = tree(pool.agents()[draw.choice(pool.members())])
        load = ForeignLoad()
        tally.keep(FROZEN, pool.recovered(kill(pids, signal.SIGSTOP)), step_s, load)
        thawed_s = kill(pids, signal.SIGCONT)
        time.sleep(3.0)
        found += sum(s.at_s > thawed_s and s.life <= life for s in pool.stamps)
        pool.cancel()
        pool.replace_lost()
    return found


def _busy(case: Case, options: Options, minutes: float) -> int:
    """Return the false verdicts beside busy cores; it is a job of its own, on four nodes."""
    found = silence.measured(minutes=minutes)
    count = int(str(found["false_verdicts"]))
    text = f"{count} false verdicts in {minutes:g} minutes beside busy cores, in {found['steps']} steps"
    options.say(f"     {text}")
    case.notes.append(text + (f": {found['first']}" if count else ""))
    return count


def _cut(network: Network, tally: Tally, draw: random.Random, rounds: int) -> None:
    settings = f"host: {network.host}\ninsecure_plaintext: true\n"
    with Pool(nodes=2, settings=settings, command=network.agent_command) as pool:
        for _ in range(rounds):
            pool.submit(**JOB)
            pool.settle("1x2")
            step_s = aim(pool.stamps, draw)
            victim = draw.choice(pool.members())
            load = ForeignLoad()
            fault_s = time.monotonic()
            network.cut(victim)
            tally.keep(CUT, pool.recovered(fault_s), step_s, load)
            network.mend(victim)
            pool.cancel()
            pool.replace_lost()


def _none(text: str, count: int) -> Claim:
    value = Spread.of([float(count)])
    return Claim(text=text, value=value, target=0.0, at_most=True)
