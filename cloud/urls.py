"""One port serves everything: identity, compute, images, admin, health."""

from django.contrib import admin
from django.urls import include, path

from cloud import health

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("identity", include("cloud.identity.urls")),
    path("image", include("cloud.images.urls")),
    path("compute", include("compute.api.urls")),
    path("admin/", admin.site.urls),
]
