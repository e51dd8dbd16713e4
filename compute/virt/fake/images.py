"""The image cache of a fake host: each image is fetched and checked once; its bytes are not kept."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from compute.virt import image_check
from compute.virt.base import Image, ImageSource
from compute.virt.fake.state import StateFile


class Images:
    """The known images. Parallel spawns of one image fetch it once."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._locks: dict[str, threading.Lock] = {}

    def virtual_size(self, image: Image, fetch: ImageSource) -> int:
        """Return the image's virtual size in bytes; fetch and check an unknown image. Raises ImageUnusable."""
        with self._locks.setdefault(image.id, threading.Lock()):
            size = self._state.image_size(image.id)
            if size is None:
                with tempfile.TemporaryDirectory(prefix="stillwater-fake-") as scratch:
                    file = Path(scratch, "image")
                    fetch(file)
                    size = image_check.check(file, image)
                if not image.sole:
                    self._state.keep_image(image.id, size)
            return size
