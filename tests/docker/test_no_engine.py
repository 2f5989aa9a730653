"""Error messages on a machine without an engine. These tests need none."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.support.docker import DockerCluster
from zkconsumer.errors import ClusterError

BUILD = Path(__file__).parents[2] / "docker" / "build.sh"


@pytest.mark.parametrize("found", [None, types.ModuleType("docker")])
def test_a_missing_sdk_is_named(
    found: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the SDK the error names the extra, even if Python finds the folder docker/
    instead."""
    monkeypatch.setitem(sys.modules, "docker", found)
    with pytest.raises(ClusterError, match="run pip install --group docker"):
        DockerCluster().start()


@pytest.mark.parametrize(
    ("arguments", "base"), [((), "debian:bookworm-slim"), (("--base", "mine:1"), "mine:1")]
)
def test_a_base_image_that_cannot_be_fetched_is_named(
    arguments: tuple[str, ...], base: str, tmp_path: Path
) -> None:
    """``build.sh`` names the missing image and how to build one, before it collects anything."""
    engine = tmp_path / "docker"  # an engine without images or a registry
    engine.write_text('#!/bin/sh\necho "$@" >>"$0.log"\n[ "$1" = version ]\n')
    engine.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(
        [BUILD, *arguments],
        env={**os.environ, "PATH": path, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr == (
        f"error: the base image {base} cannot be fetched: build one with docker/build-base.sh, "
        "or name one with --base\n"
    )
    calls = (tmp_path / "docker.log").read_text().splitlines()
    assert calls[-1] == f"pull --quiet {base}"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"kafka": "2.0"}, "choose one of 3.9"), ({"brokers": 0}, "at least one broker")],
)
def test_wrong_arguments_are_told(wrong: dict[str, object], told: str) -> None:
    """A cluster description that is impossible is refused at once."""
    with pytest.raises(ClusterError, match=told):
        DockerCluster(**wrong)  # type: ignore[arg-type]
