"""How passwords are kept."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.hashers import ScryptPasswordHasher


class Scrypt(ScryptPasswordHasher):
    """Django's, as slow as the operator wants it. A password kept at another speed is kept anew at its next login."""

    work_factor = settings.PASSWORD_WORK_FACTOR
