"""A job file with the files and the environment it refers to, checked with the lines of its keys."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from varuna_manager import config
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.jobfile import locate
from varuna_runtime.spec.mistakes import Mark, Mistake
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.yamlfile import Located


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOnDisk:
    """A job whose files exist."""

    located: Located[JobSpec]
    workdir: Path  # absolute
    secrets: dict[str, str]

    @property
    def spec(self) -> JobSpec:
        """The job itself."""
        return self.located.value


def read_job(path: Path, environment: dict[str, str] | None = None) -> JobOnDisk | tuple[Mistake, ...]:
    """Return the job in the file at `path`, or every mistake; secrets are looked up in `environment`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        return (_unreadable(path, err),)
    located = locate(text, source=str(path))
    if not isinstance(located, Located):
        return located
    known = config.environment() if environment is None else environment
    workdir = (path.parent / located.value.workdir).resolve()
    mistakes = (*_file_mistakes(located, workdir), *_secret_mistakes(located, known))
    if mistakes:
        return tuple(sorted(mistakes, key=lambda m: m.mark))
    secrets = {name: known[name] for name in located.value.secrets}
    return JobOnDisk(located=located, workdir=workdir, secrets=secrets)


def model_mistakes(located: Located[JobSpec], model: ModelRecord) -> tuple[Mistake, ...]:
    """Return what the job asks of its model that the model cannot give."""
    stages, num_segments = located.value.layout.stages, len(model.segments)
    if stages == "auto" or stages <= num_segments:
        return ()
    return (
        located.mistake(
            ("layout", "stages"),
            seen=f'"{stages}"',
            wanted=f"at most {num_segments}, the number of segments of the model",
            hint="mark more places to cut with CutPoint, or ask for fewer stages",
        ),
    )


def store_mistakes(located: Located[JobSpec]) -> tuple[Mistake, ...]:
    """Return why the checkpoints of a job of this machine's pool cannot go where it says."""
    url = located.value.checkpoint.store
    if not url or not url.startswith("file://"):
        return ()
    folder = Path(unquote(urlsplit(url).path))
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".varuna-"):
            return ()
    except OSError as err:
        seen = f"{folder}, which cannot be written to ({there}: {(err.strerror or str(err)).lower()})"
        return (located.mistake(("checkpoint", "store"), seen=seen, wanted="a folder that can be"),)


def _unreadable(path: Path, err: OSError | UnicodeDecodeError) -> Mistake:
    seen = "bytes that are not UTF-8" if isinstance(err, UnicodeDecodeError) else f"{err.strerror}".lower()
    return Mistake(
        source=str(path), mark=Mark(line=1, column=1), path="", seen=seen, wanted="a readable job file"
    )


def _file_mistakes(located: Located[JobSpec], workdir: Path) -> tuple[Mistake, ...]:
    if not workdir.is_dir():
        seen = "a file" if workdir.exists() else "no such folder"
        return (located.mistake(("workdir",), seen=f"{seen} at {workdir}", wanted="a folder"),)
    script = workdir / located.value.entrypoint
    if not script.is_file():
        seen = "a folder" if script.is_dir() else "no such file"
        hint = _similar(script)
        return (located.mistake(("entrypoint",), seen=f"{seen} at {script}", wanted="a script", hint=hint),)
    if not script.resolve().is_relative_to(workdir):
        seen = f"a link to {script.resolve()}"
        wanted = f"a script inside {workdir}, which alone is shipped to the nodes"
        return (located.mistake(("entrypoint",), seen=seen, wanted=wanted),)
    return ()


def _similar(script: Path) -> str:
    if not script.parent.is_dir():
        return ""
    scripts = sorted(p.name for p in script.parent.glob("*.py"))
    return f"that folder has {', '.join(scripts[:5])}" if scripts else ""


def _secret_mistakes(located: Located[JobSpec], environment: dict[str, str]) -> tuple[Mistake, ...]:
    return tuple(
        located.mistake(
            ("secrets", index),
            seen=f"no variable {name} in this shell",
            wanted="the secret's value there",
            hint=f"export {name}=...",
        )
        for index, name in enumerate(located.value.secrets)
        if name not in environment
    )
