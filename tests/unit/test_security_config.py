"""Client properties of security: what is understood, what is refused, and what is never printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkconsumer import ConsumerConfig
from zkconsumer.broker.sasl import SaslLogin
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.jaas import parse_jaas
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.errors import AuthenticationError, ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SECRET = "canary-7341"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="an na" note=x;', {"username": "an na", "note": "x"}),
        (f"{SCRAM} REQUIRED username=anna a='it\\'s';", {"username": "anna", "a": "it's"}),
        (f'{PLAIN} required\n  user="a=b;c"\n  a="q\\"q" ;\n', {"user": "a=b;c", "a": 'q"q'}),
        (f"{OAUTH} required;", {}),
    ],
)
def test_a_jaas_entry(text: str, options: dict[str, str]) -> None:
    """Module, flag and options as Java's own parser reads them: quotes, escapes, line ends."""
    found = parse_jaas(text)
    assert {name: value.value for name, value in found.options.items()} == options


@pytest.mark.parametrize(
    "text",
    [
        "",
        f'{PLAIN} required username="anna"',
        f'{PLAIN} required username="anna;',
        f'{PLAIN} username="anna";',
        "com.example.Other required;",
        f'{PLAIN} required username "{SECRET}";',
        f'{PLAIN} required password="{SECRET}"; {PLAIN} required;',
    ],
)
def test_a_jaas_entry_that_is_refused(text: str) -> None:
    """The error says what is wrong, and shows no value."""
    with pytest.raises(ValueError) as caught:
        parse_jaas(text)
    assert SECRET not in str(caught.value)


def sasl(**more: str) -> dict[str, str]:
    """A complete configuration. Some keys are replaced or (empty) left out."""
    keys = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} required username="anna" password="{SECRET}";',
    }
    keys |= {name.replace("_", "."): value for name, value in more.items()}
    return {name: value for name, value in keys.items() if value}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (sasl(sasl_mechanism=""), "sasl.mechanism"),
        (sasl(sasl_mechanism="SCRAM-SHA-256"), "sasl.jaas.config"),
        (sasl(sasl_mechanism="GSSAPI"), "sasl.mechanism"),
        (sasl(sasl_jaas_config=""), "sasl.jaas.config"),
        (sasl(sasl_jaas_config=f"{PLAIN} required password={SECRET}"), "sasl.jaas.config"),
        (sasl(security_protocol="SSL"), "security.protocol"),
        (sasl(security_protocol="TLS"), "security.protocol"),
        ({"ssl.truststore.location": "/a.pem"}, "security.protocol"),
        ({"security.protocol": "SSL", "ssl.keystore.key": SECRET}, "certificate.chain"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl"),
        ({"zkconsumer.zookeeper.digest": "anna"}, "zkconsumer.zookeeper.digest"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together(keys: dict[str, str], named: str) -> None:
    """The error names the key and never a secret."""
    with pytest.raises(ConfigError) as caught:
        SecurityConfig.parse(keys)
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("begin", [b"\xfe\xed\xfe\xed", b"0\x82\x0a"])
@pytest.mark.parametrize(
    ("key", "command"), [("ssl.truststore", "keytool"), ("ssl.keystore", "openssl pkcs12")]
)
def test_a_store_of_java_is_refused_with_what_converts_it(
    tmp_path: Path, key: str, command: str, begin: bytes
) -> None:
    """Only PEM is read, not PKCS12 or JKS (which begins with these bytes)."""
    store = tmp_path / "store"
    store.write_bytes(begin + bytes(40))
    keys = {"security.protocol": "SSL", f"{key}.location": str(store)}
    with pytest.raises(ConfigError) as caught:
        KafkaSecurity(SecurityConfig.parse(keys))
    assert command in str(caught.value)
    assert str(store) in str(caught.value)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """Neither the objects' texts nor the configuration's properties show it."""
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in sasl().items()))
    config = SecurityConfig.parse(file)
    member = ConsumerConfig.parse({"zookeeper.connect": "a:1", "group.id": "g"} | sasl())
    for one in (config, member, config.login, KafkaSecurity(config), vars(config)):
        assert SECRET not in f"{one!r} {one!s}"
    assert "hidden" in repr(config)
    assert config.login is not None
    assert config.login.options["password"].value == SECRET


def _token() -> object:
    return "a.b."


def _no_token() -> object:
    return 7


def _broken_token() -> object:
    raise RuntimeError(SECRET)


def token_of(function: object) -> str:
    """Ask a token provider as a login does."""
    keys = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "zkconsumer.sasl.oauthbearer.token.provider": function,
    }
    token = SaslLogin(SecurityConfig.parse(keys))._token
    assert token is not None
    return token()


def test_a_function_gives_the_token() -> None:
    """A callable, or the name of one."""
    assert token_of(_token) == "a.b."
    assert token_of(f"{__name__}:_token") == "a.b."


@pytest.mark.parametrize("function", [_no_token, _broken_token, f"{__name__}:_broken_token"])
def test_a_function_that_gives_no_token(function: object) -> None:
    """The error names the key, but not what the function raised, which may contain the secret."""
    with pytest.raises(AuthenticationError, match=r"oauthbearer\.token\.provider") as caught:
        token_of(function)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
