"""Authentication by the X-Auth-Token header."""

from __future__ import annotations

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from cloud import errors, log
from cloud.caller import Caller
from cloud.identity import tokens

CHALLENGE = 'Keystone uri="/identity/v3"'


class TokenAuthentication(BaseAuthentication):
    """Sets `request.user` to a `cloud.caller.Caller` and `request.auth` to the `tokens.Payload`."""

    def authenticate(self, request: Request) -> tuple[Caller, tokens.Payload] | None:
        """Return the caller and the payload; None without a token. Raises AuthenticationFailed for an invalid one."""
        raw = request.headers.get("X-Auth-Token")
        if not raw:
            return None
        try:
            bearer = tokens.verify(raw)
        except errors.Unauthorized as exc:
            raise exceptions.AuthenticationFailed from exc
        log.bind(user_id=bearer.caller.user_id, project_id=bearer.caller.project_id)
        return bearer.caller, bearer.payload

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge, which makes DRF answer 401, not 403."""
        return CHALLENGE
