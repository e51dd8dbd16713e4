"""The URLs of the one port: identity, compute, images, admin, health."""

from django.contrib import admin
from django.urls import include, path

from cloud import health
from compute.api.metrics import metrics

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics),
    path("identity", include("cloud.identity.urls")),
    path("image", include("cloud.images.urls")),
    path("compute", include("compute.api.urls")),
    path("admin/", admin.site.urls),
]
