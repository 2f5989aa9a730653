"""A Docker engine and an image of this checkout. Without an engine these tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 900
COMMAND_SECONDS = 120
IMAGE = "zkconsumer"
Docker = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test that needs the image enough time to build it."""
    for item in items:
        if "image" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 300))


@pytest.fixture(scope="session")
def docker() -> Docker:
    """Runs ``docker`` with these words, and returns what it prints. This is the only fixture that
    may skip, if there is no engine."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = ["docker", *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )

    def output(*words: object) -> str:
        ran = run(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    if shutil.which("docker") is None or run("version").returncode:
        pytest.skip("no Docker engine answers (start it, or set DOCKER_HOST)")
    return output


@pytest.fixture(scope="session")
def image(docker: Docker) -> str:
    """The image, built from this checkout. If the build fails, the tests fail."""
    built = subprocess.run(
        [ROOT / "docker" / "build.sh", "--tag", IMAGE],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return IMAGE
