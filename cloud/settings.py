"""Django settings, flat. Every value that may differ between machines comes from `cloud.env`."""

from __future__ import annotations

import secrets
import sys

from cells import urls as database_urls
from cloud import env, log

env.load_env_file()

BASE_DIR = env.ROOT
STATE_DIR = env.get("STILLWATER_STATE")
ROLE = env.get("STILLWATER_ROLE")
DEBUG = env.get("STILLWATER_DEBUG")
# A host or conductor that has none signs nothing that anybody else reads.
SECRET_KEY = env.get("STILLWATER_SECRET_KEY") or secrets.token_urlsafe(48)
ALLOWED_HOSTS = env.get("STILLWATER_ALLOWED_HOSTS")
PUBLIC_URL = env.get("STILLWATER_PUBLIC_URL").rstrip("/")

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "cells",
    "cloud.identity",
    "cloud.images",
    "compute",
    "tasks",
]

MIDDLEWARE = [
    "cloud.middleware.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
APPEND_SLASH = False
ROOT_URLCONF = "cloud.urls"
WSGI_APPLICATION = "cloud.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# A host has no global database at all: touching one is an error, not a connection.
_DUMMY = {"ENGINE": "django.db.backends.dummy"}
try:
    _default = (
        _DUMMY
        if ROLE == "host"
        else database_urls.config(
            env.get("STILLWATER_DATABASE_URL") or f"sqlite:///{STATE_DIR / 'global.sqlite3'}"
        )
    )
except database_urls.BadDatabaseUrl as exc:
    sys.exit(f"stillwater: STILLWATER_DATABASE_URL: {exc}")
DATABASES = {"default": _default}
DATABASE_ROUTERS = ["cells.router.CellRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "identity.User"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.ScryptPasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["cloud.identity.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["cloud.rendering.OrjsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["cloud.rendering.OrjsonParser"],
    "EXCEPTION_HANDLER": "cloud.faults.compute_handler",
    "UNAUTHENTICATED_USER": None,
}

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
STATIC_URL = "/static/"
STATIC_ROOT = STATE_DIR / "static"
WHITENOISE_USE_FINDERS = True
DATA_UPLOAD_MAX_MEMORY_SIZE = env.get("STILLWATER_MAX_BODY")
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = SESSION_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SILENCED_SYSTEM_CHECKS: list[str] = []

LOGGING = log.configure(env.get("STILLWATER_LOG_LEVEL"), env.get("STILLWATER_LOG_FORMAT"))

UNFOLD = {
    "SITE_TITLE": "Stillwater",
    "SITE_HEADER": "Stillwater",
    "SITE_SUBHEADER": "compute control plane",
    "SHOW_VIEW_ON_SITE": False,
}
