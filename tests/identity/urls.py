"""Identity, images and admin pages where `cloud.urls` has them, without the rest."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("identity", include("cloud.identity.urls")),
    path("image", include("cloud.images.urls")),
    path("admin/", admin.site.urls),
]
