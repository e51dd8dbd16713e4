"""manage.py image_import: make an image from a file of this machine. Idempotent."""

import hashlib
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from cloud.errors import ApiError
from cloud.identity.models import Project
from cloud.images import upload
from cloud.images.format_check import FORMATS
from cloud.images.models import Image, Status, Visibility
from cloud.images.schemas import RESERVED


class Command(BaseCommand):
    """Imports an image unless there is one with this name and content."""

    help = "Import a file as an image of the project admin; prints its id. Same name and content: nothing new."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options; name, format and file are required."""
        parser.add_argument("--name", required=True)
        parser.add_argument("--disk-format", required=True, choices=FORMATS)
        parser.add_argument("--file", required=True, type=Path)
        parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
        parser.add_argument("--public", action="store_true")
        parser.add_argument("--min-ram", type=int, default=0, metavar="MB")

    def handle(self, *args: Any, **options: Any) -> None:
        """Import with the checks of an upload; the properties of an existing image are updated."""
        properties = dict(map(_pair, options["property"]))
        settings = {
            "properties": properties,
            "min_ram": options["min_ram"],
            "visibility": Visibility.PUBLIC if options["public"] else Visibility.PRIVATE,
        }
        try:
            image = _known(options["name"], options["file"])
            if image is None:
                image = _import(options["name"], options["disk_format"], options["file"])
        except OSError as exc:
            raise CommandError(f"{options['file']}: {exc.strerror}") from exc
        except ApiError as exc:
            raise CommandError(exc.message) from exc
        Image.objects.filter(pk=image.pk).update(**settings)
        self.stdout.write(image.pk)


def _pair(raw: str) -> tuple[str, str]:
    key, equals, value = raw.partition("=")
    if not (key and equals) or key in RESERVED:
        raise CommandError(f"--property {raw}: not KEY=VALUE, or a name of the image's own.")
    return key, value


def _known(name: str, file: Path) -> Image | None:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha512").hexdigest()
    return Image.objects.filter(name=name, status=Status.ACTIVE, os_hash_value=digest).first()


def _import(name: str, disk_format: str, file: Path) -> Image:
    owner = Project.objects.filter(name="admin").values_list("pk", flat=True).first() or ""
    image = Image.objects.create(
        name=name,
        owner=owner,
        visibility=Visibility.PRIVATE,
        disk_format=disk_format,
        container_format="bare",
    )
    try:
        with file.open("rb") as content:
            upload.receive(image.pk, content.read, file.stat().st_size)
    except BaseException:
        image.delete()
        raise
    return image
