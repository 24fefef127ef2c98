"""How often a recorded pool lost nodes, and how many at once."""

from collections import Counter

from varuna_manager.planner.outlook import LossRate, estimated
from varuna_manager.traces import Recording


def loss_rate(recording: Recording) -> LossRate:
    """Return the rate to expect after a recording, as a manager does that watched it."""
    present, num_lost, node_s, at_s = 0, 0, 0.0, 0.0
    bursts = Counter({1: 1})
    for change in recording.changes:
        node_s += present * (change.at_s - at_s)
        at_s = change.at_s
        present += len(change.joined) - len(change.left)
        num_lost += len(change.left)
        if change.left:
            bursts[len(change.left)] += 1
    node_s += present * (recording.length_s - at_s)
    weights = tuple(float(bursts[size]) for size in range(1, max(bursts) + 1))
    return LossRate(per_node_s=estimated(num_lost, node_s), burst_weights=weights)
