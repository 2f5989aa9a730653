"""Checks of the keys that log in with SASL. Loaded where such a key is given. Pure; any thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from zkconsumer.config.jaas import kerberos_login, parse_jaas
from zkconsumer.config.values import DIGEST, KERBEROS, OAUTH, PLAIN, SCRAM, Password


def entry_fault(line: Password, modules: Collection[str]) -> str | None:
    """Return the fault in a JAAS entry, which must use one of the modules; ``None`` if there is
    none."""
    try:
        entry = parse_jaas(line.value)
        if entry.module == KERBEROS:
            kerberos_login(entry)
    except ValueError as error:
        return str(error)
    if entry.module not in modules:
        return f"{entry.module} does not belong here: use {' or '.join(modules)}"
    if entry.module in (PLAIN, SCRAM, DIGEST):
        lacking = [name for name in ("username", "password") if not entry.options.get(name)]
        return f'{entry.module} needs {lacking[0]}="..."' if lacking else None
    user = "unsecuredLoginStringClaim_sub"
    if entry.module == OAUTH and entry.options and not entry.options.get(user):
        return f'{entry.module} knows {user}="..." only'
    return None


def login_fault(values: Mapping[str, Any], module: str) -> str | None:
    """Return what is wrong with the combination of SASL keys for a mechanism with this login
    module; ``None`` if nothing is."""
    mechanism, line = values["sasl_mechanism"], values["sasl_jaas_config"]
    login = None if line is None else parse_jaas(line.value)
    if login is not None and login.module != module:
        return (
            f"sasl.jaas.config names {login.module}, but sasl.mechanism={mechanism} needs {module}"
        )
    if login is not None and module == KERBEROS:
        service, key = kerberos_login(login).service, values["sasl_kerberos_service_name"]
        if service and key and service != key:
            return (
                f"sasl.kerberos.service.name={key}, but serviceName={service} in sasl.jaas.config: "
                "keep one"
            )
    if module != OAUTH:
        return (
            None if login else f"sasl.jaas.config is missing: sasl.mechanism={mechanism} needs it"
        )
    sources = (
        values["sasl_oauthbearer_token_endpoint_url"],
        values["sasl_oauthbearer_token_provider"],
        login and login.options,
    )
    if sum(bool(source) for source in sources) == 1:
        return None
    return (
        "sasl.oauthbearer.token.endpoint.url=file:///PATH, or "
        "zkconsumer.sasl.oauthbearer.token.provider, must say where the token is: give one of them"
    )
