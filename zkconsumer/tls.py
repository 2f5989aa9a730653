"""Creates TLS contexts from PEM files and texts. Only this module reads certificates and keys;
Python's ssl does everything else. Any thread; threads may share a context."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkconsumer.config.security_keys import SecurityKeys
from zkconsumer.config.values import Password
from zkconsumer.errors import ConfigError

_MAX_BYTES: Final = 16 * 1024 * 1024
_JKS: Final = b"\xfe\xed\xfe\xed"
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")


@dataclass(frozen=True)
class TlsSettings:
    """The settings of one TLS context. ``prefix`` precedes the names of keys in errors."""

    prefix: str
    truststore_location: str | None
    truststore_certificates: str | None
    truststore_type: str | None
    keystore_location: str | None
    keystore_chain: str | None
    keystore_key: Password | None
    keystore_type: str | None
    key_password: Password | None
    key_password_name: str
    check_host: bool
    versions: str


def for_brokers(keys: SecurityKeys) -> ssl.SSLContext:
    """Return the context for connections to brokers. Raises ConfigError, which names the key."""
    return _context(
        TlsSettings(
            "ssl.",
            keys.ssl_truststore_location,
            keys.ssl_truststore_certificates,
            keys.ssl_truststore_type,
            keys.ssl_keystore_location,
            keys.ssl_keystore_certificate_chain,
            keys.ssl_keystore_key,
            keys.ssl_keystore_type,
            keys.ssl_key_password,
            "ssl.key.password",
            bool(keys.ssl_endpoint_identification_algorithm),
            keys.ssl_enabled_protocols,
        )
    )


def for_zookeeper(keys: SecurityKeys) -> ssl.SSLContext:
    """Return the context for connections to ZooKeeper. Raises ConfigError, which names the key."""
    return _context(
        TlsSettings(
            "zookeeper.ssl.",
            keys.zookeeper_ssl_truststore_location,
            None,
            keys.zookeeper_ssl_truststore_type,
            keys.zookeeper_ssl_keystore_location,
            None,
            None,
            keys.zookeeper_ssl_keystore_type,
            keys.zookeeper_ssl_keystore_password,
            "zookeeper.ssl.keystore.password",
            bool(keys.zookeeper_ssl_endpoint_identification_algorithm),
            keys.ssl_enabled_protocols,
        )
    )


def certificate_fault(error: ssl.SSLError, prefix: str) -> str | None:
    """Return how to correct a refused handshake; None if only the connection broke.

    ``prefix`` is the prefix of the configuration keys: ``ssl.`` or ``zookeeper.ssl.``. Most TLS
    alerts report temporary faults. Only those about a certificate, a cipher suite or a version can
    be corrected with a key.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or "it cannot be verified"
        name = "endpoint.identification.algorithm" if error.verify_code in (62, 64) else None
        if name is None:
            return f"its certificate is not accepted ({why}): see {prefix}truststore.location"
        return (
            f"its certificate is for another host ({why}): use the name in the certificate, or "
            f"get a certificate for this name ({prefix}{name}=https asks for it)"
        )
    text = " ".join(str(part) for part in (error.reason, error.strerror) if part)
    if "WRONG_VERSION_NUMBER" in text or "HTTP_REQUEST" in text:
        return "it does not speak TLS at this port"
    alert = text.upper()
    key = f"{prefix}keystore.location"
    if "ALERT" not in alert:
        if "UNEXPECTED_MESSAGE" not in alert:
            return None
        return (
            "it ended the handshake, as brokers before 2.0 do if they do not accept this client's "
            f"certificate, or require one: see {key}"
        )
    if "PROTOCOL_VERSION" in alert:
        return "it speaks none of the versions in ssl.enabled.protocols"
    name = (error.reason or "TLS alert").lower()
    if "CERTIFICATE_REQUIRED" in alert or "NO_CERTIFICATE" in alert:
        return f"it requires a certificate of this client ({name}): set {key}"
    if "UNKNOWN_CA" in alert:
        return f"it does not know the issuer of this client's certificate ({name}): see {key}"
    if "ACCESS_DENIED" in alert:
        return f"it denies the owner of this client's certificate access ({name}): see {key}"
    if "CERTIFICATE" in alert or "DECRYPT_ERROR" in alert:
        return f"it does not accept this client's certificate ({name}): see {key}"
    if "HANDSHAKE_FAILURE" in alert or "INSUFFICIENT_SECURITY" in alert:
        return (
            f"it accepts no cipher suite of this client, or requires a certificate ({name}): see "
            f"ssl.enabled.protocols and {key}"
        )
    return None


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_host
    versions = {name.strip() for name in settings.versions.split(",")}
    if "TLSv1.2" not in versions:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    if "TLSv1.3" not in versions:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    _trust(context, settings)
    _identify(context, settings)
    return context


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    text, name = settings.truststore_certificates, f"{settings.prefix}truststore.certificates"
    where = settings.truststore_location
    if where is not None:
        name = f"{settings.prefix}truststore.location"
        text = _read(name, where, settings.truststore_type, _trust_command(where))
        name = f"{name}={where}"
    if text is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    certificates = [block for kind, block in _blocks(text) if kind.endswith("CERTIFICATE")]
    if not certificates:
        raise ConfigError([f"{name} has no certificate in PEM format (BEGIN CERTIFICATE)"])
    try:
        context.load_verify_locations(cadata="\n".join(certificates))
    except ssl.SSLError as error:
        reason = error.reason or error.strerror
        raise ConfigError([f"{name}: a certificate cannot be read: {reason}"]) from None


def _identify(context: ssl.SSLContext, settings: TlsSettings) -> None:
    where, prefix = settings.keystore_location, settings.prefix
    if where is not None:
        name = f"{prefix}keystore.location={where}"
        text = _read(
            f"{prefix}keystore.location", where, settings.keystore_type, _key_command(where)
        )
    elif settings.keystore_key is not None and settings.keystore_chain is not None:
        name = f"{prefix}keystore.key"
        text = settings.keystore_key.value + "\n" + settings.keystore_chain
    else:
        return
    blocks = _blocks(text)
    keys = [block for kind, block in blocks if kind.endswith("PRIVATE KEY")]
    chain = [block for kind, block in blocks if kind.endswith("CERTIFICATE")]
    if len(keys) != 1 or not chain:
        raise ConfigError(
            [f"{name} must have one private key and its certificate chain in PEM format"]
        )
    secret = "" if settings.key_password is None else settings.key_password.value
    # Python takes a key from a file only. mkstemp's can be read by this user alone.
    descriptor, path = tempfile.mkstemp(prefix="zkconsumer-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(keys + chain) + "\n")
        # With a function, OpenSSL never asks at the terminal.
        context.load_cert_chain(path, password=lambda: secret)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "it cannot be decrypted"
        fault = f"{name}: the private key cannot be used ({str(reason).lower()}): "
        fault += f"see {settings.key_password_name}, and whether key and certificate fit"
        raise ConfigError([fault]) from None
    finally:
        os.unlink(path)


def _read(name: str, where: str, kind: str | None, command: str) -> str:
    """Return the text of a PEM file. The error for another file type explains how to convert it."""
    try:
        with Path(where).open("rb") as file:
            data = file.read(_MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{name}={where}: cannot be read: {reason}"]) from None
    binary = "JKS" if data.startswith(_JKS) else "PKCS12" if data.startswith(b"\x30") else None
    if binary is not None or (kind or "PEM").upper() != "PEM":
        form = binary or (kind or "").upper()
        type_name = name.replace(".location", ".type")
        fault = f"{name}={where}: is a {form} store, which cannot be used here; convert it with: "
        raise ConfigError([f"{fault}{command} (and set {type_name}=PEM)"])
    return data.decode("utf-8", "replace")


def _trust_command(where: str) -> str:
    return f"keytool -list -rfc -keystore {shlex.quote(where)} > {shlex.quote(_pem(where))}"


def _key_command(where: str) -> str:
    pem, between = shlex.quote(_pem(where)), shlex.quote(f"{where}.p12")
    return (
        f"keytool -importkeystore -srckeystore {shlex.quote(where)} -destkeystore {between} "
        f"-deststoretype PKCS12 && openssl pkcs12 -in {between} -out {pem} && rm {between}"
    )


def _pem(where: str) -> str:
    return str(Path(where).with_suffix(".pem"))


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return type and text of each PEM block. As in Kafka, line breaks do not count."""
    blocks = []
    for match in _BLOCK.finditer(text.replace("\\n", "\n")):
        kind, body = match[1], match[2]
        if ":" not in body:  # an old encrypted key has headers, which need their lines
            body = "".join(body.split())
            body = "\n" + "\n".join(body[at : at + 64] for at in range(0, len(body), 64)) + "\n"
        blocks.append((kind, f"-----BEGIN {kind}-----{body}-----END {kind}-----"))
    return blocks
