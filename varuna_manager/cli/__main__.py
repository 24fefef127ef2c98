"""`python -m varuna_manager.cli` is `varuna`."""

from varuna_manager.cli.root import main

main()
