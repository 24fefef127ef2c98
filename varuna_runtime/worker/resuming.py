"""Which checkpoint a rank starts from; never initial weights where there is, or was, a durable step."""

from varuna_runtime.checkpoint import read_manifest, scan
from varuna_runtime.checkpoint.manifests import complete_steps
from varuna_runtime.checkpoint.tensors import iter_tensors
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import Manifest
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.store import Store
from varuna_runtime.worker.engine import RankEngine


class Resumption:
    """Loads one rank's share of the newest complete step, or of the one the ranks agree on."""

    def __init__(self, store: Store, job: str, model: ModelRecord, engine: RankEngine) -> None:
        self._store = store
        self._job = job
        self._model = model
        self._engine = engine

    def load_newest(self, resume_step: int | None) -> int:
        """Return the step loaded, 0 for initial weights.

        `resume_step` is the durable step the manager knows of. Raises CheckpointRefused when something was
        durable and nothing can be loaded.
        """
        manifest = self._newest(resume_step, verify=False)
        if manifest is None:
            return 0
        try:
            self._load(manifest)
        except CheckpointRefused:  # a shard lies though its size is right: look closely from the top
            manifest = self._newest(manifest.step, verify=True)
            assert manifest is not None
            self._load(manifest)
        return self._engine.step

    def load_step(self, step: int) -> None:
        """Load this very step: another rank could not read a newer one."""
        if step == 0:
            raise CheckpointRefused("a rank found no checkpoint where others did")
        self._load(read_manifest(self._store, self._job, step))

    def load_imported(self) -> None:
        """Replace initial weights by the step 0 that was imported for this job, if there is one."""
        if 0 in self.steps():
            self._load(read_manifest(self._store, self._job, 0))

    def steps(self) -> tuple[int, ...]:
        """Return the durable steps that look complete, ascending."""
        return complete_steps(self._store, self._job)

    def sound_steps(self) -> tuple[int, ...]:
        """Return these up to the newest of which every byte was read and is right, ascending.

        An imported step 0 is not read where it is alone: there is nothing to go back to.
        """
        steps = self.steps()
        if not any(steps):
            return steps
        newest = scan(self._store, self._job, verify=True, model=self._model).manifest
        return () if newest is None else tuple(step for step in steps if step <= newest.step)

    def _newest(self, resume_step: int | None, *, verify: bool) -> Manifest | None:
        found = scan(self._store, self._job, verify=verify, model=self._model)
        if found.manifest is None and (found.refusals or resume_step):
            why = "; ".join(refusal.reason for refusal in found.refusals) or "the store holds none"
            raise CheckpointRefused(
                f"job {self._job} had a durable step, but no checkpoint can be loaded: {why}. "
                "It does not start again from initial weights by itself"
            )
        for refusal in found.refusals:
            print(f"varuna: step {refusal.step} is passed over: {refusal.reason}", flush=True)  # noqa: T201
        return found.manifest

    def _load(self, manifest: Manifest) -> None:
        live = {n: t for held in self._engine.state().segments.values() for n, t in held.items()}
        targets = {name: tensor for name, tensor in live.items() if not name.startswith("optim:")}
        pieces = iter_tensors(self._store, manifest, self._engine.needed_segments, targets)
        self._engine.load_pieces((tensors for _, tensors in pieces), manifest.trainer)
