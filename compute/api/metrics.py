"""GET /metrics: the metrics of the whole cloud in the Prometheus text format. `cloud.metrics` declares them."""

from __future__ import annotations

import hmac
import ipaddress

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from compute.metrics import CloudCollector

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-Ip", "Via")


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Serve callers with the bearer token STILLWATER_METRICS_TOKEN; when it is not set, only this machine."""
    if settings.METRICS_TOKEN:
        if not _has_token(request):
            refusal = "A bearer token is needed: STILLWATER_METRICS_TOKEN.\n"
            return HttpResponse(refusal, status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"})
    elif not _is_local(request):
        refusal = "Without STILLWATER_METRICS_TOKEN only this machine may read the metrics.\n"
        return HttpResponse(refusal, status=403, content_type="text/plain")
    return HttpResponse(generate_latest(CloudCollector()), content_type=CONTENT_TYPE_LATEST)


def _has_token(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    matches = hmac.compare_digest(token.strip().encode(), settings.METRICS_TOKEN.encode())
    return matches and scheme.lower() == "bearer"


def _is_local(request: HttpRequest) -> bool:
    """Return whether a request is from loopback and not forwarded: a proxy forwards for other machines."""
    if any(name in request.headers for name in FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:  # a UNIX socket has no address: the client is a proxy
        return False
