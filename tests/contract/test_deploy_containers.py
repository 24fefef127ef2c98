"""The container image and the Kubernetes manifests.

Neither a container engine nor a cluster is at hand: the Dockerfile is read, and the wheel that it would
install is built from exactly the files it copies; manifests are held against Kubernetes' own schemas.
"""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support import deploy
from varuna_manager.config import load

DOCKERFILE = deploy.DEPLOY / "docker" / "Dockerfile"
MANIFESTS = list(yaml.safe_load_all((deploy.DEPLOY / "kubernetes" / "varuna.yaml").read_text()))
KNOWN = {
    "ARG",
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "ENTRYPOINT",
    "CMD",
}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, rest))
    return found


def test_the_dockerfile_has_two_stages_and_the_last_one_is_not_root() -> None:
    assert {name for name, _ in instructions()} <= KNOWN
    build, last = stages()
    assert build[0][1].endswith(" AS build")
    assert [rest.split()[0] for name, rest in last if name == "COPY"] == ["--from=build"]
    names = [name for name, _ in last]
    assert dict(last)["USER"] == "10001:10001"
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))
    assert json.loads(dict(last)["ENTRYPOINT"]) == ["varuna"]


def test_its_commands_are_shell() -> None:
    for name, rest in instructions():
        if name == "RUN":
            done = subprocess.run(["/bin/sh", "-n", "-c", rest], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), rest


def test_what_it_copies_makes_the_whole_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, rest in stages()[0]:
        if name == "COPY":
            *files, _ = rest.split()
            for file in files:
                origin, target = deploy.ROOT / file, source / file
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin, target, ignore=ignored) if origin.is_dir() else shutil.copy(
                    origin, target
                )
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        ".",
    ]
    command += ["--wheel-dir", str(tmp_path), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("varuna-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = [deploy.ROOT / "varuna_runtime", deploy.ROOT / "varuna_manager"]
    ours = {str(path.relative_to(deploy.ROOT)) for package in packages for path in package.rglob("*.py")}
    assert ours - names == set()


def test_the_build_sees_what_it_copies_and_no_more() -> None:
    lines = (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text().split()
    copied = [file for name, rest in stages()[0] if name == "COPY" for file in rest.split()[:-1]]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
@pytest.mark.parametrize("version", ["1.31", "1.35"])
def test_kubernetes_knows_every_key(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_would_find_a_mistake() -> None:
    broken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)


def pods() -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in MANIFESTS
        if each["kind"] == "StatefulSet"
    }


def test_the_manager_reads_its_settings(tmp_path: Path) -> None:
    [config] = [each["data"]["manager.yaml"] for each in MANIFESTS if each["kind"] == "ConfigMap"]
    (tmp_path / "manager.yaml").write_text(config)
    settings = load(tmp_path / "manager.yaml")
    assert settings.is_tls
    assert [pool.provider for pool in settings.pools] == ["static"]


@pytest.mark.parametrize("name", ["varuna-manager", "varuna-agent"])
def test_a_pod_may_do_nothing_it_does_not_need(name: str) -> None:
    pod = pods()[name]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]} | {"home"}


def test_kubernetes_waits_longer_than_an_agent_drains() -> None:
    pod = pods()["varuna-agent"]
    [drain] = [each for each in pod["containers"][0]["args"] if each.startswith("--drain-on-term=")]
    assert (
        int(drain.removeprefix("--drain-on-term=").removesuffix("s")) + 20
        <= pod["terminationGracePeriodSeconds"]
    )
