"""What one is told where there is no engine. These need none."""

from __future__ import annotations

import sys
import types

import pytest

from zkconsumer.errors import ClusterError
from zkconsumer.testing.docker import DockerCluster


@pytest.mark.parametrize("found", [None, types.ModuleType("docker")])
def test_a_missing_sdk_is_named(
    found: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the SDK the error names the extra, also when the folder docker/ is found instead."""
    monkeypatch.setitem(sys.modules, "docker", found)
    with pytest.raises(ClusterError, match=r"in a clone run pip install '\.\[docker\]'"):
        DockerCluster().start()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"kafka": "2.0"}, "choose one of 3.9"), ({"brokers": 0}, "at least one broker")],
)
def test_wrong_arguments_are_told(wrong: dict[str, object], told: str) -> None:
    """A cluster that cannot be is refused when it is described."""
    with pytest.raises(ClusterError, match=told):
        DockerCluster(**wrong)  # type: ignore[arg-type]
