"""System checks: the token keys are valid, and the API has one."""

from __future__ import annotations

from typing import Any

from django.core import checks

from cloud import env


@checks.register(checks.Tags.security)
def token_keys(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report a missing or malformed key, which otherwise shows at the first login."""
    from cryptography.fernet import Fernet  # noqa: PLC0415  workers have no keys and do not load it

    hint = "Make one with manage.py token_key."
    keys = env.get("STILLWATER_TOKEN_KEYS")
    if not keys and env.get("STILLWATER_ROLE") == "api":
        return [checks.Error("STILLWATER_TOKEN_KEYS is empty.", id="identity.E001", hint=hint)]
    try:
        for key in keys:
            Fernet(key)
    except ValueError:
        text = "STILLWATER_TOKEN_KEYS holds something that is not a Fernet key."
        return [checks.Error(text, id="identity.E002", hint=hint)]
    return []
