"""``build.sh`` on a machine whose engine has no images. These tests need none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "docker" / "build.sh"


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
