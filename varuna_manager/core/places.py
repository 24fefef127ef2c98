"""Where nodes are and what they cost, as their provider says."""

from dataclasses import replace

from varuna_manager.core.change import Change
from varuna_manager.core.events import NodesPlaced


def on_placed(change: Change, event: NodesPlaced) -> None:
    """Remember it of the nodes that are there; plans in use stay."""
    for place in event.places:
        node = change.state.nodes.get(place.node)
        if node is not None and not node.is_gone:
            change.put_node(
                replace(node, pool=event.pool, domain=place.domain, price_per_hour=event.price_per_hour)
            )
