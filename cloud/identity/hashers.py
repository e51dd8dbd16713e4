"""The password hasher."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.hashers import ScryptPasswordHasher


class Scrypt(ScryptPasswordHasher):
    """Django's hasher with a configurable work factor. A hash with another work factor is renewed at the next login."""

    work_factor = settings.PASSWORD_WORK_FACTOR
