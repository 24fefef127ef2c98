"""From a user's model to segments on the meta device, and back to real tensors where owned."""
