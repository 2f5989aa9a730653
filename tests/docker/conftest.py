"""A Docker engine and an image of this checkout. Without an engine these tests are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker import IMAGE
from tests.support.docker_engine import connect_engine
from zkconsumer.errors import ClusterError

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test that needs the image enough time to build it."""
    for item in items:
        if "image" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 300))


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The engine's client. This is the only fixture that may skip, if there is no engine."""
    try:
        client = connect_engine()
    except ClusterError as error:
        pytest.skip(str(error))
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(engine: Any) -> str:
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
