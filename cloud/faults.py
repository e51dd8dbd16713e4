"""Exceptions as answers, in the shapes that OpenStack clients know."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, DataError
from django.http import Http404
from rest_framework import exceptions as drf
from rest_framework.response import Response

from cloud import errors, log

logger = log.get(__name__)
NAMES = {
    400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound",
    405: "badMethod", 409: "conflictingRequest", 413: "overLimit", 415: "badMediaType",
    429: "overLimit", 501: "notImplemented", 503: "serviceUnavailable",
}  # fmt: skip


def compute_handler(exc: Exception, context: dict[str, Any]) -> Response:
    """Return Nova's fault: `{"itemNotFound": {"code": 404, "message": "…"}}`."""
    error = as_api_error(exc, context)
    fault: dict[str, Any] = {"code": error.status, "message": error.message}
    if error.retry_after is not None:
        fault["retryAfter"] = str(error.retry_after)
    return _response(error, {NAMES.get(error.status, "computeFault"): fault})


def identity_handler(exc: Exception, context: dict[str, Any]) -> Response:
    """Return Keystone's fault: `{"error": {"code": 401, "title": "Unauthorized", "message": "…"}}`."""
    error = as_api_error(exc, context)
    title = error.__class__.__name__
    return _response(error, {"error": {"code": error.status, "title": title, "message": error.message}})


def as_api_error(exc: Exception, context: dict[str, Any]) -> errors.ApiError:
    """Return the error for the client. Our own bugs are logged with their traceback and reported briefly."""
    if isinstance(exc, errors.ApiError):
        return exc
    known = _KNOWN.get(type(exc))
    if known is not None:
        return known()
    if isinstance(exc, drf.UnsupportedMediaType):
        return errors.UnsupportedMediaType(f"Unsupported Content-Type: {exc.args[0] if exc.args else ''}")
    if isinstance(exc, drf.APIException):
        error = errors.ApiError(str(exc.detail))
        error.status = exc.status_code
        return error
    if isinstance(exc, RequestDataTooBig):
        return errors.TooLarge("Request is too large.")
    view = type(context.get("view")).__name__
    if isinstance(exc, DatabaseError):
        logger.error("request.database_unavailable", view=view, exc_info=exc)
        return errors.Unavailable("A database does not answer now. Try again in a few seconds.")
    logger.error("request.failed", view=view, exc_info=exc)
    return errors.ApiError(
        "Unexpected API Error. Please report this, with the request id, to the operator of this cloud.\n"
        f"<class '{type(exc).__module__}.{type(exc).__name__}'>"
    )


_KNOWN: dict[type[Exception], Any] = {
    Http404: errors.NotFound,
    DataError: lambda: errors.BadRequest("A value is one that the database cannot hold or compare with."),
    drf.NotFound: errors.NotFound,
    drf.NotAuthenticated: errors.Unauthorized,
    drf.AuthenticationFailed: errors.Unauthorized,
    drf.PermissionDenied: errors.Forbidden,
    drf.MethodNotAllowed: errors.MethodNotAllowed,
    drf.ParseError: lambda: errors.BadRequest("Malformed request body"),
}


def _response(error: errors.ApiError, body: dict[str, Any]) -> Response:
    response = Response(body, status=error.status)
    if error.retry_after is not None:
        response["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        response["WWW-Authenticate"] = 'Keystone uri="/identity/v3"'
    return response
