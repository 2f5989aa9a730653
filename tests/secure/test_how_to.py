"""docs/how-to/secure.md works as written, and so do the commands that errors name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.secure.stage import EVERYTHING, TOPIC, Stage
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.errors import ConfigError
from zkconsumer.tls import for_brokers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "secure.md"


def blocks() -> dict[str, str]:
    """Each block of commands, by its mark."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"<!-- test: (.+?) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("<!-- test: ")
    return dict(found)


def shell(script: str, folder: Path, **variables: str) -> str:
    """Run a script with the installed commands on the path, and return its standard output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=os.environ | variables | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_s_commands_work(stage: Stage, tmp_path: Path) -> None:
    """Only the owner can read the file, and every command accepts it."""
    shutil.copy(stage.cluster.authority.ca, tmp_path / "ca.pem")
    shell(blocks()["file"], tmp_path)
    file = tmp_path / "client.properties"
    assert file.stat().st_mode & 0o77 == 0
    text = file.read_text()
    assert 'password="secret"' in text
    file.write_text(text.replace('"secret"', f'"{stage.cluster.password}"'))
    printed = shell(
        blocks()["tools"],
        tmp_path,
        ZOOKEEPER=f"{stage.cluster.zookeeper}/how-to",
        BOOTSTRAP=stage.cluster.at("SASL_SSL"),
        TOPIC=TOPIC,
    )
    assert len([line for line in printed.splitlines() if line.isdigit()]) == 10
    assert "JoinGroup" in printed


STORES = [(kind, store) for kind in ("JKS", "PKCS12") for store in ("truststore", "keystore")]


@pytest.mark.parametrize(("kind", "store"), STORES if EVERYTHING else STORES[1:3])
def test_the_command_that_converts_a_store_works(
    stage: Stage, tmp_path: Path, kind: str, store: str
) -> None:
    """A Java keystore is refused with a command. The file that this command writes is accepted."""
    place, password = tmp_path / "java.store", "changeit"
    client = stage.cluster.certificates / "client.pem"
    if store == "truststore":
        shell(
            f"keytool -importcert -noprompt -alias ca -file {stage.cluster.authority.ca} "
            f"-keystore {place} -storetype {kind} -storepass {password}",
            tmp_path,
        )
    else:
        shell(
            f"openssl pkcs12 -export -in {client} -out in.p12 -passout pass:{password} && "
            f"keytool -importkeystore -noprompt -srckeystore in.p12 -srcstorepass {password} "
            f"-srcstoretype PKCS12 -destkeystore {place} -deststoretype {kind} "
            f"-deststorepass {password}",
            tmp_path,
        )
    key = f"ssl.{store}.location"
    given = {"security.protocol": "SSL", key: str(place)}
    with pytest.raises(ConfigError) as caught:
        for_brokers(SecurityConfig.parse(given))
    fault = str(caught.value)
    assert f"{key}={place}: is a {kind} store" in fault
    command = re.search(r"convert it with: (.*) \(and set", fault)
    assert command is not None
    # On a terminal the programs ask for passwords.
    script = command[1]
    for words, answers in (
        ("-importkeystore", "-srcstorepass changeit -deststorepass changeit"),
        ("-list -rfc", "-storepass changeit"),
        ("openssl pkcs12", "-passin pass:changeit -passout pass:changeit"),
    ):
        script = script.replace(words, f"{words} {answers}")
    shell(script, tmp_path)
    given |= {key: str(place.with_suffix(".pem")), f"ssl.{store}.type": "PEM"}
    if store == "keystore":
        given["ssl.key.password"] = password
    for_brokers(SecurityConfig.parse(given))
