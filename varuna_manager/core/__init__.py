"""The pure brain: step(state, event) -> (state, actions)."""
