"""One process per slot: builds its stage, runs the schedule, commits steps."""
