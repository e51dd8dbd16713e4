"""Django settings, flat. Every value that may differ between machines comes from `cloud.env`."""

from __future__ import annotations

import secrets
import socket
import sys

from cells import database_urls
from cloud import env, log, startup
from cloud.tls import files as tls_files

env.load_env_file()

BASE_DIR = env.ROOT
STATE_DIR = env.get("STILLWATER_STATE")
ROLE = env.get("STILLWATER_ROLE")
DEBUG = env.get("STILLWATER_DEBUG")
# A process that has none signs nothing that another process reads.
SECRET_KEY = env.get("STILLWATER_SECRET_KEY") or secrets.token_urlsafe(48)
ALLOWED_HOSTS = env.get("STILLWATER_ALLOWED_HOSTS")
PUBLIC_URL = env.get("STILLWATER_PUBLIC_URL").rstrip("/")

# Admin pages are loaded only where they are served: they are a fifth of a worker's start time, a third of a command's.
_PAGES = ["django.contrib.admin.apps.SimpleAdminConfig"]
if ROLE == "api" or (ROLE == "manage" and not startup.is_ours(sys.argv)):
    _PAGES = ["unfold", "django.contrib.admin"]
INSTALLED_APPS = [
    *_PAGES,
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
    "cloud.serving.middleware.turn_away",
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

try:
    _serves_https = tls_files.of_api() is not None
except tls_files.BadTlsSettings as exc:
    env.stop(str(exc))
# A host has no global database: its use is an error, not a connection.
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
    env.stop(f"STILLWATER_DATABASE_URL: {exc}")
DATABASES = {"default": _default}
DATABASE_ROUTERS = ["cells.router.CellRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "identity.User"
PASSWORD_WORK_FACTOR = env.get("STILLWATER_PASSWORD_WORK_FACTOR")
PASSWORD_HASHERS = [
    "cloud.identity.hashers.Scrypt",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["cloud.identity.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["cloud.drf_json.OrjsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["cloud.drf_json.OrjsonParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "cloud.drf_json.AlwaysJson",
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
if PUBLIC_URL.startswith("https://"):
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    if not _serves_https:  # a proxy terminates TLS and sets the header
        SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    CSRF_TRUSTED_ORIGINS = ["/".join(PUBLIC_URL.split("/")[:3])]
CSRF_COOKIE_SAMESITE = SESSION_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SILENCED_SYSTEM_CHECKS: list[str] = []

# Stillwater's own settings.
HOST = env.get("STILLWATER_HOST") or socket.gethostname()
SERVICE_DOWN_TIME = env.get("STILLWATER_SERVICE_DOWN_TIME")
REPORT_INTERVAL = env.get("STILLWATER_REPORT_INTERVAL")
_TIMEOUT = env.get("STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT")
GRACEFUL_SHUTDOWN_TIMEOUT = env.GRACEFUL_SHUTDOWN_TIMEOUTS.get(ROLE, 80.0) if _TIMEOUT is None else _TIMEOUT
SUPERVISOR_TIMEOUT = env.get("STILLWATER_SUPERVISOR_TIMEOUT")
SERVICE_VERSION = env.get("STILLWATER_SERVICE_VERSION")
RELAY_INTERVAL = env.get("STILLWATER_RELAY_INTERVAL")
RESEND_AFTER = env.get("STILLWATER_RESEND_AFTER")
CELL_TIMEOUT = env.get("STILLWATER_CELL_TIMEOUT")
CELL_RETRY_INTERVAL = env.get("STILLWATER_CELL_RETRY_INTERVAL")
LIST_RECORDS_BY_SKIPPING_DOWN_CELLS = env.get("STILLWATER_LIST_RECORDS_BY_SKIPPING_DOWN_CELLS")
SHUTDOWN_TIMEOUT = env.get("STILLWATER_SHUTDOWN_TIMEOUT")
SHUTDOWN_RETRY_INTERVAL = env.get("STILLWATER_SHUTDOWN_RETRY_INTERVAL")
RESIZE_CONFIRM_WINDOW = env.get("STILLWATER_RESIZE_CONFIRM_WINDOW")
RECLAIM_INSTANCE_INTERVAL = env.get("STILLWATER_RECLAIM_INSTANCE_INTERVAL")
SHELVED_OFFLOAD_TIME = env.get("STILLWATER_SHELVED_OFFLOAD_TIME")
MAX_ATTEMPTS = env.get("STILLWATER_MAX_ATTEMPTS")
WEIGHT_MULTIPLIERS = {
    name: env.get(f"STILLWATER_{name.upper()}_WEIGHT_MULTIPLIER")
    for name in ("ram", "cpu", "disk", "io_ops", "soft_affinity", "soft_anti_affinity")
}
HOST_STATE = env.get("STILLWATER_HOST_STATE")
MAX_LIMIT = env.get("STILLWATER_MAX_LIMIT")
BROKER_URL = env.get("STILLWATER_BROKER_URL")
KEEP_OUTAGES = ROLE in ("api", "scheduler", "conductor")  # processes that live long enough to see one begin and end
CELL_UUID = env.get("STILLWATER_CELL_UUID")
CELL_NAME = env.get("STILLWATER_CELL_NAME")
CELL_DATABASE_URL = env.get("STILLWATER_CELL_DATABASE_URL")
CELL_BROKER_URL = env.get("STILLWATER_CELL_BROKER_URL")
QUOTA_COUNT_FROM = env.get("STILLWATER_QUOTA_COUNT_FROM")
if QUOTA_COUNT_FROM not in ("api", "cells"):
    env.stop(f"STILLWATER_QUOTA_COUNT_FROM is {QUOTA_COUNT_FROM!r}; it is api or cells.")
QUOTA_DEFAULTS = {
    "instances": env.get("STILLWATER_QUOTA_INSTANCES"),
    "cores": env.get("STILLWATER_QUOTA_CORES"),
    "ram": env.get("STILLWATER_QUOTA_RAM"),
    "metadata_items": env.get("STILLWATER_QUOTA_METADATA_ITEMS"),
    "key_pairs": env.get("STILLWATER_QUOTA_KEY_PAIRS"),
    "server_groups": env.get("STILLWATER_QUOTA_SERVER_GROUPS"),
    "server_group_members": env.get("STILLWATER_QUOTA_SERVER_GROUP_MEMBERS"),
}

DRIVER = env.get("STILLWATER_DRIVER")
AVAILABILITY_ZONE = env.get("STILLWATER_AVAILABILITY_ZONE")
CPU_RATIO = env.get("STILLWATER_CPU_RATIO")
RAM_RATIO = env.get("STILLWATER_RAM_RATIO")
DISK_RATIO = env.get("STILLWATER_DISK_RATIO")
RESUME_GUESTS = env.get("STILLWATER_RESUME_GUESTS")
DRAIN_LIVE_MIGRATIONS = env.get("STILLWATER_DRAIN_LIVE_MIGRATIONS")
if DRAIN_LIVE_MIGRATIONS not in env.DRAIN_LIVE_MIGRATIONS:
    allowed = ", ".join(env.DRAIN_LIVE_MIGRATIONS)
    env.stop(f"STILLWATER_DRAIN_LIVE_MIGRATIONS is {DRAIN_LIVE_MIGRATIONS!r}. Use one of {allowed}.")
POWER_TRUTH = env.get("STILLWATER_POWER_TRUTH")
if POWER_TRUTH not in env.POWER_AUTHORITIES:
    env.stop(f"STILLWATER_POWER_TRUTH is {POWER_TRUTH!r}. Use one of {', '.join(env.POWER_AUTHORITIES)}.")
SYNC_POWER_STATE_INTERVAL = env.get("STILLWATER_SYNC_POWER_STATE_INTERVAL")
HANDLE_LIFECYCLE_EVENTS = env.get("STILLWATER_HANDLE_LIFECYCLE_EVENTS")
POWER_FLAPS = env.get("STILLWATER_POWER_FLAPS")
POWER_FLAP_WINDOW = env.get("STILLWATER_POWER_FLAP_WINDOW")
HOST_SLOTS = env.get("STILLWATER_HOST_SLOTS")
LONG_SLOTS = max(1, env.get("STILLWATER_LONG_SLOTS"))
CONDUCTOR_SLOTS = env.get("STILLWATER_CONDUCTOR_SLOTS")
_MIGRATION_TLS = env.get("STILLWATER_MIGRATION_TLS")
LIBVIRT_OPTIONS = {
    "uri": env.get("STILLWATER_LIBVIRT_URI"),
    "state_dir": HOST_STATE,
    "virt_type": env.get("STILLWATER_VIRT_TYPE"),
    "hostname": HOST,
    "guests_dir": env.get("STILLWATER_GUESTS_DIR") or "",
    "migration_uri": env.get("STILLWATER_LIBVIRT_MIGRATION_URI"),
    "migration_address": env.get("STILLWATER_MIGRATION_ADDRESS"),
    "migration_bandwidth": env.get("STILLWATER_MIGRATION_BANDWIDTH"),
    "migration_tls": bool(env.get("STILLWATER_TLS_CERT")) if _MIGRATION_TLS is None else _MIGRATION_TLS,
    "open_network": env.get("STILLWATER_LIBVIRT_OPEN_NETWORK"),
}
IRONIC_OPTIONS = {
    "hostname": HOST,
    "state_dir": HOST_STATE,
    "url": env.get("STILLWATER_IRONIC_URL"),
    "username": env.get("STILLWATER_IRONIC_USERNAME"),
    "password": env.get("STILLWATER_IRONIC_PASSWORD"),
    "cloud": env.get("STILLWATER_IRONIC_CLOUD"),
    "conductor_group": env.get("STILLWATER_IRONIC_CONDUCTOR_GROUP"),
    "shard": env.get("STILLWATER_IRONIC_SHARD"),
    "timeout": env.get("STILLWATER_IRONIC_TIMEOUT"),
    "deploy_timeout": env.get("STILLWATER_IRONIC_DEPLOY_TIMEOUT"),
}
FAKE_OPTIONS = {
    "hostname": HOST,
    "state": HOST_STATE / "guests.sqlite3",
    "faults": env.get("STILLWATER_FAKE_FAULTS"),
    "vcpus": env.get("STILLWATER_FAKE_VCPUS"),
    "memory_mb": env.get("STILLWATER_FAKE_MEMORY_MB"),
    "disk_gb": env.get("STILLWATER_FAKE_DISK_GB"),
    "nodes": env.get("STILLWATER_FAKE_NODES"),
    "resource_class": env.get("STILLWATER_FAKE_RESOURCE_CLASS"),
}

METRICS_PORT = env.get("STILLWATER_METRICS_PORT")
METRICS_BIND = env.get("STILLWATER_METRICS_BIND")
METRICS_TOKEN = env.get("STILLWATER_METRICS_TOKEN")

# People read the output of a command.
_log_format = env.get("STILLWATER_LOG_FORMAT") or ("console" if ROLE == "manage" else "json")
LOGGING = log.configure(env.get("STILLWATER_LOG_LEVEL"), _log_format)

UNFOLD = {
    "SITE_TITLE": "Stillwater",
    "SITE_HEADER": "Stillwater",
    "SITE_SUBHEADER": "compute control plane",
    "SHOW_VIEW_ON_SITE": False,
    "DASHBOARD_CALLBACK": "compute.admin.dashboard.context",
    "SIDEBAR": {"navigation": "compute.admin.navigation.menu", "show_search": True},
}
