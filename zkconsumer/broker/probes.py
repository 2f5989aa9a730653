"""Why a broker ended a connection: asked on another one, without credentials. Errors only."""

from __future__ import annotations

from typing import Any

from zkconsumer.broker.api_versions import supported_versions
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import AuthenticationError, BrokerError


def look_for_plaintext(probe: Any, endpoint: BrokerEndpoint, security: KafkaSecurity) -> None:
    """Ask without TLS which versions the broker knows; nothing else is sent.

    ``probe`` is a new ``BrokerConnection`` without security. Raises what ``security.refuse`` raises
    if the listener answers.
    """
    try:
        probe._connect()
        plaintext = supported_versions(probe) is not None
    except (OSError, BrokerError, AuthenticationError):
        return
    finally:
        probe.close()
    if plaintext:
        security.refuse(
            endpoint,
            f"this listener speaks no TLS, but security.protocol={security.protocol}",
        )


def look_for_sasl(probe: Any, endpoint: BrokerEndpoint, security: KafkaSecurity) -> None:
    """Ask for mechanisms; a listener with SASL closes on all other requests.

    ``probe`` is a new ``BrokerConnection``. Raises what ``security.refuse`` raises if there are.
    """
    from zkconsumer.broker.sasl import enabled_mechanisms

    try:
        probe.open()
        enabled = enabled_mechanisms(probe)
    except BrokerError:
        return
    finally:
        probe.close()
    if enabled is not None:
        wanted = "SASL_SSL" if security.context is not None else "SASL_PLAINTEXT"
        security.refuse(
            endpoint,
            f"this listener wants SASL ({', '.join(enabled)}), but security.protocol="
            f"{security.protocol}: set {wanted} and sasl.mechanism",
        )
