"""The SASL exchange on a connection to a broker, and the sources of passwords and tokens.

kafka-python's classes create the mechanisms' messages, and ``zkconsumer.kerberos`` those of
GSSAPI. Any thread.

Brokers since 1.0 expect the client's bytes in SaslAuthenticate requests. Brokers 0.10 and 0.11
expect the bare bytes after SaslHandshake. Brokers 0.9 support only GSSAPI, and expect the bare
bytes without SaslHandshake. Brokers before 1.0 close the connection to refuse a client.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from struct import Struct, error as StructError
from typing import Any, Final, NoReturn

from zkconsumer.broker.api_versions import SASL_AUTHENTICATE, SASL_HANDSHAKE
from zkconsumer.broker.messages import (
    AbstractTokenProvider,
    KafkaError,
    get_sasl_mechanism,
    register_sasl_mechanism,
)
from zkconsumer.broker.types import OpenConnection, TokenRefusedError
from zkconsumer.config.security_keys import SecurityKeys
from zkconsumer.config.values import HIDDEN, KERBEROS
from zkconsumer.core.common.error_codes import ErrorCode, name_of
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import (
    AuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    ConfigError,
    UnsupportedBrokerError,
)

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_LOGGERS: Final = ("kafka.net.connection", "kafka.protocol.parser", "kafka.net.selector")
_MAX_ROUNDS: Final = 8
_UNSECURED_SECONDS: Final = 3600
_MAX_TOKEN: Final = 1024 * 1024
_RENEW_AT: Final = 0.85
"""Part of a session's lifetime after which a connection is reopened, as in Kafka's client."""

Refuse = Callable[[BrokerEndpoint, str], NoReturn]
"""Called with a broker and the reason why the broker and this client do not accept each other."""


class SaslLogin:
    """The identity of one client.

    Raises ConfigError if the provider of tokens does not exist, and the errors of ``Kerberos``.
    """

    def __init__(self, keys: SecurityKeys) -> None:
        self._keys = keys
        self._user = self._secret = ""
        login = keys.login
        if login is not None and "username" in login.options:
            self._user = login.options["username"].value
            self._secret = login.options["password"].value
        self._token = _token_source(keys) if keys.sasl_mechanism == "OAUTHBEARER" else None
        self._kerberos = None
        if login is not None and login.module == KERBEROS:
            from zkconsumer.kerberos import Kerberos

            key, configured = "sasl.kerberos.service.name", keys.sasl_kerberos_service_name
            self._kerberos = Kerberos(login, "sasl.jaas.config", configured or "kafka", key)
            self._user = self._kerberos.principal

    def log_in(self, connection: OpenConnection, refuse: Refuse, again: bool) -> float | None:
        """Carry out the SASL exchange on a new connection.

        Return when (``time.monotonic``) the connection must be reopened; None: never. Raises the
        errors of ``refuse`` and ``BrokerConnection.exchange``. ``again``: if a token was
        refused, raise TokenRefusedError, so that the token is read again.
        """
        endpoint, name = connection.endpoint, self._keys.sasl_mechanism
        version = min(1, connection.highest(SASL_AUTHENTICATE))
        if connection.highest(SASL_HANDSHAKE) >= 0:
            self._choose(connection, name, refuse)
        elif self._kerberos is None:
            raise UnsupportedBrokerError(
                f"broker at {endpoint.host}:{endpoint.port}: sasl.mechanism={name} needs Kafka "
                "0.10 or newer"
            )
        try:
            mechanism = self._mechanism(name, connection.here.host)
        except AuthenticationError as error:
            refuse(endpoint, str(error))
        lifetime = 0
        for _ in range(_MAX_ROUNDS):
            try:
                token = mechanism.auth_bytes()
            except AuthenticationError as error:  # of the source of tokens
                if again:
                    raise TokenRefusedError from None
                refuse(endpoint, str(error))
            if version >= 0:
                body = _INT.pack(len(token)) + token
                answer = connection.exchange(SASL_AUTHENTICATE, version, body)
                code, _, reply, lifetime = authenticated(endpoint, bytes(answer), version)
            else:
                try:
                    code, reply = 0, connection.exchange_bytes(token, not mechanism.is_done())
                except BrokerUnavailableError as error:
                    if not isinstance(error.__cause__, ConnectionError):
                        raise
                    code = ErrorCode.SASL_AUTHENTICATION_FAILED
            if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
                self._denied(endpoint, refuse, again)
            if code:  # a fault of the broker's own
                where = f"broker at {endpoint.host}:{endpoint.port}"
                raise BrokerUnavailableError(f"{where}: the login failed: {name_of(code)}")
            try:
                mechanism.receive(reply)
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                if self._kerberos is not None:
                    refuse(endpoint, f"its answer to GSSAPI is refused: {error}")
                refuse(
                    endpoint,
                    f"it does not know the password of {self._user} itself: it may be another "
                    "server, or the password in sasl.jaas.config is wrong",
                )
            if mechanism.is_done():
                break
        if not mechanism.is_authenticated():
            self._denied(endpoint, refuse, again)
        return time.monotonic() + lifetime / 1000 * _RENEW_AT if lifetime > 0 else None

    def _choose(self, connection: OpenConnection, name: str, refuse: Refuse) -> None:
        """Choose the mechanism, and how to send its bytes."""
        version = 1 if connection.highest(SASL_AUTHENTICATE) >= 0 else 0
        enabled, code = _handshake(connection, name, version)
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            refuse(
                connection.endpoint,
                f"this listener uses no SASL, but security.protocol={self._keys.security_protocol}",
            )
        if code:
            refuse(
                connection.endpoint,
                f"sasl.mechanism={name} is not enabled there: it knows {', '.join(enabled)}",
            )

    def _denied(self, endpoint: BrokerEndpoint, refuse: Refuse, again: bool) -> NoReturn:
        if again and self._kerberos is not None:
            self._kerberos.renew()
        if again and (self._token or self._kerberos) is not None:
            raise TokenRefusedError
        # The broker's own text is not repeated: it could hold what was sent.
        name = self._keys.sasl_mechanism
        if self._token is None:
            key = f"sasl.jaas.config ({name}, user {self._user})"
        elif self._keys.token_file is not None:
            key = "the token of sasl.oauthbearer.token.endpoint.url"
        elif self._keys.sasl_oauthbearer_token_provider is not None:
            key = "the token of zkconsumer.sasl.oauthbearer.token.provider"
        else:
            key = "the unsecured token of sasl.jaas.config"
        refuse(endpoint, f"it refuses {key}")

    def _mechanism(self, name: str, host: str) -> Any:
        if self._kerberos is not None:
            from zkconsumer.kerberos import KdcUnavailableError

            try:
                return self._kerberos.exchange(host)
            except KdcUnavailableError as error:
                raise BrokerUnavailableError(f"broker at {host}: {error}") from None
        kind = get_sasl_mechanism(name)
        if self._token is not None:
            return kind(sasl_oauth_token_provider=_Provider(self._token))
        user = self._user
        if name.startswith("SCRAM"):  # RFC 5802: these two cannot stand in a name
            user = user.replace("=", "=3D").replace(",", "=2C")
        return kind(sasl_mechanism=name, sasl_plain_username=user, sasl_plain_password=self._secret)

    def for_kafka_python(self) -> dict[str, Any]:
        """Return the arguments for a kafka-python client, except the TLS arguments."""
        arguments: dict[str, Any] = {"sasl_mechanism": self._keys.sasl_mechanism}
        if self._kerberos is not None:
            known = get_sasl_mechanism("GSSAPI")
            if not isinstance(known, _Gssapi):
                register_sasl_mechanism("GSSAPI", _Gssapi(known), overwrite=True)
            return {**arguments, "sasl_kerberos_name": self._kerberos}
        if self._token is not None:
            return {**arguments, "sasl_oauth_token_provider": _Provider(self._token)}
        secret = {"sasl_plain_username": self._user, "sasl_plain_password": self._secret}
        return arguments | secret


def hide_sasl() -> None:
    """Keep credentials out of kafka-python's log."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, _HideSasl) for known in logger.filters):
            logger.addFilter(_HideSasl())


class _HideSasl(logging.Filter):
    """Removes SASL requests and bytes, which may be credentials, from kafka-python's log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove credentials from the record."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_without_sasl, record.args))
        return True


def _without_sasl(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    kind = type(value).__name__
    return f"{kind}({HIDDEN})" if kind.startswith("Sasl") else value


class _Gssapi:
    """kafka-python's GSSAPI, which supports default credentials only, with this library's
    identities."""

    def __init__(self, own: Callable[..., Any]) -> None:
        self._own = own

    def __call__(self, **config: Any) -> Any:
        """Return a mechanism for one login."""
        from zkconsumer.kerberos import KdcUnavailableError, Kerberos

        identity = config.get("sasl_kerberos_name")
        if not isinstance(identity, Kerberos):
            return self._own(**config)
        try:
            return identity.exchange(config["host"])
        except (KdcUnavailableError, AuthenticationError) as error:
            raise KafkaError(str(error)) from None


class _Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, source: Callable[[], str]) -> None:
        super().__init__()
        self._source = source

    def token(self) -> str:
        """Return a token."""
        return self._source()


def _token_source(keys: SecurityKeys) -> Callable[[], str]:
    if keys.token_file is not None:
        path = keys.token_file
        return lambda: _token_of_file(path)
    provider = keys.sasl_oauthbearer_token_provider
    if provider is not None:
        return _checked(_imported(provider) if isinstance(provider, str) else provider)
    login = keys.login
    assert login is not None  # the rules say so
    user = login.options["unsecuredLoginStringClaim_sub"].value
    return lambda: unsecured_token(user)


def _token_of_file(path: str) -> str:
    where = f"sasl.oauthbearer.token.endpoint.url=file://{path}"
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(_MAX_TOKEN).strip()
    except OSError as error:
        raise AuthenticationError(f"{where}: the file cannot be read: {error.strerror}") from None
    except ValueError:
        raise AuthenticationError(f"{where}: the file is not ASCII text") from None
    if not token:
        raise AuthenticationError(f"{where}: the file is empty")
    return token


def _imported(name: str) -> Callable[[], object]:
    key = f"zkconsumer.sasl.oauthbearer.token.provider={name}"
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"{key}: {error}"]) from None
    if not callable(function):
        raise ConfigError([f"{key} is not a function"])
    return function  # type: ignore[no-any-return]


def _checked(function: Callable[[], object]) -> Callable[[], str]:
    key = "zkconsumer.sasl.oauthbearer.token.provider"

    def ask() -> str:
        try:
            token = function()
        except Exception as error:  # noqa: BLE001 - the application's own; its text may be a secret
            kind = type(error).__name__
            raise AuthenticationError(f"{key}: the function raised {kind}") from None
        if not isinstance(token, str) or not token:
            raise AuthenticationError(
                f"{key}: the function must return a token, as a non-empty string"
            )
        return token

    return ask


def unsecured_token(user: str) -> str:
    """Return an unsigned JWS like Kafka's ``OAuthBearerUnsecuredLoginCallbackHandler``."""
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + _UNSECURED_SECONDS}
    parts = ({"alg": "none"}, claims)
    texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return b".".join(texts).decode() + "."


def enabled_mechanisms(connection: OpenConnection) -> tuple[str, ...] | None:
    """Return the mechanisms of a listener with SASL. None if it has no SASL, or does not support
    the handshake. Sends no credentials."""
    highest = connection.highest(SASL_HANDSHAKE)
    if highest < 0:
        return None
    enabled, code = _handshake(connection, "", min(1, highest))
    return enabled if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else None


def _handshake(connection: OpenConnection, name: str, version: int) -> tuple[tuple[str, ...], int]:
    """Return the listener's mechanisms and its error code."""
    data = name.encode()
    body = _SHORT.pack(len(data)) + data
    answer = bytes(connection.exchange(SASL_HANDSHAKE, version, body))
    with _readable(connection.endpoint):
        (code,) = _SHORT.unpack_from(answer)
        (count,) = _INT.unpack_from(answer, 2)
        at, mechanisms = 6, []
        for _ in range(min(max(count, 0), 64)):
            (size,) = _SHORT.unpack_from(answer, at)
            text = answer[at + 2 : at + 2 + max(size, 0)].decode("utf-8", "replace")
            mechanisms.append(ascii(text)[1:-1])
            at += 2 + max(size, 0)
    return tuple(mechanisms), code


def authenticated(
    endpoint: BrokerEndpoint, answer: bytes, version: int
) -> tuple[int, str, bytes, int]:
    """Decode a SaslAuthenticate response: code, message, the server's bytes, session lifetime in
    ms.

    Raises BrokerError for an unreadable response.
    """
    with _readable(endpoint):
        (code,) = _SHORT.unpack_from(answer)
        (size,) = _SHORT.unpack_from(answer, 2)
        at = 4 + max(size, 0)
        message = answer[4:at].decode("utf-8", "replace")
        (size,) = _INT.unpack_from(answer, at)
        reply = answer[at + 4 : at + 4 + max(size, 0)]
        at += 4 + max(size, 0)
        lifetime = _LONG.unpack_from(answer, at)[0] if version else 0
    return code, message, reply, lifetime


@contextmanager
def _readable(endpoint: BrokerEndpoint) -> Iterator[None]:
    try:
        yield
    except StructError:
        raise BrokerError(
            f"broker at {endpoint.host}:{endpoint.port}: its SASL response is unreadable"
        ) from None
