"""Who is asking: the X-Auth-Token header as a Caller."""

from __future__ import annotations

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from cloud import errors, log
from cloud.caller import Caller
from cloud.identity import tokens

CHALLENGE = 'Keystone uri="/identity/v3"'


class TokenAuthentication(BaseAuthentication):
    """`request.user` is a `cloud.caller.Caller`, `request.auth` the `tokens.Payload`."""

    def authenticate(self, request: Request) -> tuple[Caller, tokens.Payload] | None:
        """None without a token; raises AuthenticationFailed for one that is no good (any more)."""
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
        """Makes DRF answer 401, not 403."""
        return CHALLENGE
