"""Encryption of connections to brokers, and which brokers accept this client.

Owns the TLS context; ``sasl`` logs in. One object serves all connections of a member or a tool, on
any thread. Before the first broker has accepted this client, a refusal is a mistake in the
configuration: it is remembered, and nothing is tried again. Later it is a fault of that broker,
which is asked again after a pause.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from zkconsumer.broker.types import OpenConnection
from zkconsumer.config.security_keys import NO_SECURITY, SecurityKeys
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import AuthenticationError, BrokerUnavailableError

if TYPE_CHECKING:
    from zkconsumer.broker.sasl import SaslLogin

_TOKEN_SECONDS: Final = 1.0
"""Seconds after which a refused token is read again, because it may be renewed at this moment."""
_PAUSES: Final = (1.0, 60.0)
"""Seconds until a broker that has refused this client is asked again: at first, and at most."""

logger = logging.getLogger("zkconsumer.broker")


@dataclass(slots=True)
class _Fault:
    """Why a broker that does not accept this client failed; until when it is not asked again."""

    text: str
    pause: float
    until: float


class KafkaSecurity:
    """The security of all connections to the brokers of one cluster.

    Args:
        keys: checked configuration; without it, PLAINTEXT.

    Raises ConfigError when certificates or keys cannot be read.
    """

    def __init__(self, keys: SecurityKeys | None = None) -> None:
        self._keys = keys = NO_SECURITY if keys is None else keys
        self.protocol = keys.security_protocol
        self.listener = keys.listener
        self.sasl = keys.uses_sasl
        self.may_be_old = keys.sasl_mechanism == "GSSAPI" if self.sasl else not keys.uses_tls
        """Whether a broker may be too old to know the request for versions."""
        self._context: ssl.SSLContext | None = None
        self.login: SaslLogin | None = None
        if keys.uses_tls:
            from zkconsumer.tls import for_brokers

            self._context = for_brokers(keys)
        if keys.uses_sasl:
            from zkconsumer.broker.sasl import SaslLogin

            self.login = SaslLogin(keys)
        self._refused: AuthenticationError | None = None
        self._accepted = False
        """Whether any broker has accepted this client."""
        self._faults: dict[tuple[str, int], _Fault] = {}
        """By address: the brokers that have refused this client since."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"KafkaSecurity({self.protocol})"

    @property
    def refused(self) -> AuthenticationError | None:
        """The reason why no more connections are opened."""
        return self._refused

    def check(self) -> None:
        """Raise AuthenticationError if a broker and this client have failed to authenticate, and no
        other broker had accepted this client before."""
        if self._refused is not None:
            raise AuthenticationError(str(self._refused)) from None

    def check_broker(self, endpoint: BrokerEndpoint) -> None:
        """Raise what ``check`` raises, or BrokerUnavailableError if this broker has refused this
        client a moment ago."""
        self.check()
        fault = self._faults.get((endpoint.host, endpoint.port))
        if fault is not None and time.monotonic() < fault.until:
            raise BrokerUnavailableError(fault.text)

    def accepted(self, endpoint: BrokerEndpoint) -> None:
        """A broker has accepted this client."""
        self._accepted = True
        with self._lock:
            self._faults.pop((endpoint.host, endpoint.port), None)

    @property
    def faults(self) -> tuple[str, ...]:
        """The brokers that do not accept this client now, although another one has."""
        now = time.monotonic()
        with self._lock:
            return tuple(
                fault.text for fault in self._faults.values() if now < fault.until + _PAUSES[1]
            )

    def refuse(self, endpoint: BrokerEndpoint, why: str) -> NoReturn:
        """A broker and this client do not accept each other, for the reason ``why``.

        Raises AuthenticationError, now and in each ``check``, if no broker has accepted this client
        yet. Otherwise raises BrokerUnavailableError, until a pause has passed.
        """
        text = f"broker at {endpoint.host}:{endpoint.port}: {why}"
        if not self._accepted:
            self._refused = AuthenticationError(text)
            self.check()
        key, (first, longest) = (endpoint.host, endpoint.port), _PAUSES
        with self._lock:
            before = self._faults.get(key)
            pause = first if before is None else min(2 * before.pause, longest)
            self._faults[key] = _Fault(text, pause, time.monotonic() + pause)
        logger.warning("%s; it is asked again in %g s", text, pause)
        raise BrokerUnavailableError(text)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS."""
        return self._context

    def tls_failed(self, endpoint: BrokerEndpoint, error: ssl.SSLError) -> None:
        """Raise what ``refuse`` raises unless the connection only broke."""
        from zkconsumer.tls import certificate_fault

        why = certificate_fault(error, "ssl.")
        if why == "it does not speak TLS at this port":
            why = f"{why}, but security.protocol={self.protocol}"
        if why is not None:
            self.refuse(endpoint, why)

    def log_in(self, connection: OpenConnection, again: bool = False) -> float | None:
        """Log in on a new connection: see ``SaslLogin``."""
        assert self.login is not None
        return self.login.log_in(connection, self.refuse, again)

    def wait_for_token(self) -> None:
        """Give the source of tokens a moment to renew the one that was refused."""
        time.sleep(_TOKEN_SECONDS)
