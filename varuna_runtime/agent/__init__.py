"""One torch-free process per node: membership, notices, supervision of workers."""
