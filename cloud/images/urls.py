"""Glance v2, mounted at /image without a slash: the routes begin with one."""

from django.urls import path, re_path

from cloud.images.api import base, discovery, file, images

urlpatterns = [
    path("", discovery.VersionsView.as_view()),
    path("/", discovery.VersionsView.as_view()),
    path("/versions", discovery.VersionsView.as_view()),
    path("/v2/images", images.ImagesView.as_view()),
    path("/v2/images/<str:image_id>", images.ImageView.as_view()),
    path("/v2/images/<str:image_id>/file", file.FileView.as_view()),
    path("/v2/images/<str:image_id>/tags/<str:tag>", images.TagView.as_view()),
    path("/v2/schemas/image", discovery.SchemaView.as_view(schema_of="image")),
    path("/v2/schemas/images", discovery.SchemaView.as_view(schema_of="images")),
    path("/v2/info/import", discovery.ImportInfoView.as_view()),
    re_path(r"^/.*$", base.UnknownView.as_view()),
]
