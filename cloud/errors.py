"""Errors that are answers to an API request: one class per kind, each with its HTTP status.

The docstring of a subclass is its default message to the client.
"""

from __future__ import annotations


class ApiError(Exception):
    """An error that ends a request with a clear answer: `message` is for people, `status` for programs."""

    status = 500
    retry_after: int | None = None

    def __init__(self, message: str = "", *, retry_after: int | None = None) -> None:
        super().__init__(message or self.__class__.__doc__ or "")
        self.message = str(self)
        self.retry_after = retry_after if retry_after is not None else self.retry_after


class BadRequest(ApiError):
    """The request makes no sense as it is."""

    status = 400


class Unauthorized(ApiError):
    """The request you have made requires authentication."""

    status = 401


class Forbidden(ApiError):
    """You are not allowed to do this."""

    status = 403


class QuotaExceeded(Forbidden):
    """The project's quota does not allow this."""


class NotFound(ApiError):
    """The resource could not be found."""

    status = 404


class MethodNotAllowed(ApiError):
    """The method specified is not allowed for this resource."""

    status = 405


class NotAcceptable(ApiError):
    """This microversion is not supported."""

    status = 406


class Conflict(ApiError):
    """The resource is in a state that does not allow this."""

    status = 409


class Gone(ApiError):
    """This resource is no longer available. No forwarding address is given."""

    status = 410


class TooLarge(ApiError):
    """The request is larger than the server takes."""

    status = 413


class UnsupportedMediaType(ApiError):
    """Unsupported Content-Type"""

    status = 415


class NotImplementedHere(ApiError):
    """This cloud cannot do this."""

    status = 501


class Unavailable(ApiError):
    """A part of the cloud this request needs does not answer now. Try again later."""

    status = 503
    retry_after = 5
