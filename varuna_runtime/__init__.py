"""Varuna's runtime: `import varuna_runtime as varuna` in a training script."""
