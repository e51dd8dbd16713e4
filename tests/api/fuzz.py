"""Bad requests made up from a seed: every route of the three APIs, bodies and queries that are almost right.

A good value is replaced by one of another type, size or encoding, because a value that is wrong in one place
comes further than one that is wrong in all.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.urls import URLPattern, URLResolver, get_resolver

from compute.api import server_query
from compute.contract import microversion
from compute.operations import registry

CONTROLS = ["\n", "-1\n", "1\n", "\r\n", "a\r\nX-Evil: 1", "\x7f", "\x1b[2J", "\x85", "\u2028", "\u202e", "\ufeff",
            "\0"]  # fmt: skip
TEXTS = ["", " ", "a" * 300, "é" * 255, "😀", "'", '";--', "%", "_", "%%s", "((", "[", "\\", "*", "../..", "${x}",
         "null", "true", "a,b", "a/b", "x" * 70_000]  # fmt: skip
DIGITS = ["0", "-0", "-1", "1e5", " 1", "0x10", "+1", "1_000", "٣", "²", "1.5", "9" * 400, "2147483648", "NaN",
          "00000000-0000-0000-0000-000000000000", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00",
          "9999-12-31T23:59:59-14:00"]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 10**30, 1.5, -0.0, 1e308, 5e-324]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], [{}], {"": ""}, {"a": {"a": 1}}, [1] * 60, ["a"] * 60]
WORDS = CONTROLS + TEXTS + DIGITS
UUID = "12121212-3434-4565-8787-909090909090"
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
# Bodies that are accepted, or refused late, by where they go. `ID`: a server's, `IMAGE`: an image's.
BODIES: list[tuple[str, str, Any]] = [
    ("POST", "servers", {"server": {
        "name": "a", "flavorRef": "1", "imageRef": "IMAGE", "networks": "none", "min_count": 1, "max_count": 1,
        "metadata": {"a": "b"}, "tags": ["a"], "availability_zone": "nova", "hostname": "ab", "user_data": "aGk=",
        "accessIPv4": "192.0.2.1", "accessIPv6": "2001:db8::1",
        "description": "d", "config_drive": False, "key_name": "k", "host": "host1",
        "security_groups": [{"name": "default"}], "OS-DCF:diskConfig": "AUTO", "return_reservation_id": False,
        "adminPass": "x", "block_device_mapping_v2": [{"source_type": "image", "uuid": "IMAGE", "boot_index": 0}],
        "trusted_image_certificates": [], "termination_grace_period_seconds": 5,
    }, "os:scheduler_hints": {"group": UUID, "same_host": [UUID], "different_host": UUID}}),
    ("PUT", "servers/<server_id>", {"server": {
        "name": "a", "description": "d", "accessIPv4": "192.0.2.1", "accessIPv6": "2001:db8::1", "hostname": "ab",
        "OS-DCF:diskConfig": "AUTO", "termination_grace_period_seconds": 5}}),
    ("POST", "metadata", {"metadata": {"a": "b"}}), ("PUT", "metadata", {"metadata": {"a": "b"}}),
    ("PUT", "metadata/<key>", {"meta": {"a": "b"}}), ("PUT", "tags", {"tags": ["a", "b"]}), ("PUT", "tags/<tag>", None),
    ("POST", "migrations/<migration_id>/action", {"force_complete": None}),
    ("POST", "flavors", {"flavor": {
        "name": "f", "id": "f1", "ram": 512, "vcpus": 1, "disk": 1, "swap": 0, "OS-FLV-EXT-DATA:ephemeral": 0,
        "rxtx_factor": 1.0, "os-flavor-access:is_public": True, "description": "d"}}),
    ("PUT", "flavors/<flavor_id>", {"flavor": {"description": "d"}}),
    ("POST", "flavors/<flavor_id>/action", {"addTenantAccess": {"tenant": "a"}}),
    ("POST", "flavors/<flavor_id>/action", {"removeTenantAccess": {"tenant": "a"}}),
    ("POST", "os-extra_specs", {"extra_specs": {"hw:a": "b"}}), ("PUT", "os-extra_specs/<key>", {"a": "b"}),
    ("POST", "os-keypairs", {"keypair": {
        "name": "k", "public_key": "ssh-ed25519 AAAA", "type": "ssh", "user_id": "u"}}),
    ("PUT", "os-quota-sets/<project_id>", {"quota_set": {"cores": 5, "instances": -1, "ram": "7", "force": True}}),
    ("PUT", "os-services/<service_id>", {"status": "disabled", "disabled_reason": "r", "forced_down": False}),
    ("POST", "os-aggregates", {"aggregate": {"name": "g", "availability_zone": "z"}}),
    ("PUT", "os-aggregates/<aggregate_id>", {"aggregate": {"name": "g", "availability_zone": "z"}}),
    ("POST", "os-aggregates/<aggregate_id>/action", {"add_host": {"host": "host1"}}),
    ("POST", "os-aggregates/<aggregate_id>/action", {"remove_host": {"host": "host1"}}),
    ("POST", "os-aggregates/<aggregate_id>/action", {"set_metadata": {"metadata": {"a": "b", "c": None}}}),
    ("POST", "os-server-external-events", {"events": [
        {"name": "power-update", "server_uuid": "ID", "tag": "POWER_OFF", "status": "completed"}]}),
    ("POST", "os-server-groups", {"server_group": {
        "name": "g", "policy": "anti-affinity", "policies": ["affinity"], "rules": {"max_server_per_host": 2}}}),
    ("POST", "v2/images", {"name": "i", "disk_format": "raw", "container_format": "bare", "visibility": "private",
                           "id": UUID, "min_disk": 1, "min_ram": 1, "tags": ["a"], "protected": False, "a": "b"}),
    ("PATCH", "v2/images/<image_id>", [{"op": "replace", "path": "/name", "value": "x"}]),
    ("PUT", "v2/images/<image_id>/tags/<tag>", None), ("PUT", "v2/images/<image_id>/file", "bytes"),
    ("POST", "v3/auth/tokens", {"auth": {
        "identity": {"methods": ["password"], "password": {"user": {
            "name": "a", "id": "i", "domain": {"id": "default", "name": "Default"}, "password": "p"}},
            "token": {"id": "t"}},
        "scope": {"project": {"name": "p", "id": "i", "domain": {"id": "default"}}, "system": {"all": True}}}}),
    ("POST", "v3/projects", {"project": {"name": "p", "description": "d", "enabled": True, "domain_id": "default"}}),
    ("PATCH", "v3/projects/<project_id>", {"project": {"name": "p", "enabled": True}}),
    ("POST", "v3/users", {"user": {
        "name": "u", "password": "p", "email": "a@b", "enabled": True, "default_project_id": "x"}}),
    ("PATCH", "v3/users/<user_id>", {"user": {"name": "u", "password": "p", "enabled": True}}),
    ("POST", "v3/users/<user_id>/password", {"user": {"password": "p", "original_password": "q"}}),
]  # fmt: skip
QUERY_NAMES = sorted({
    *server_query.FILTERS, *server_query.SINCE_283, *server_query.ADMIN_FILTERS, *server_query.SPECIAL,
    "limit", "marker",
    "sort_key", "sort_dir", "user_id", "project_id", "host", "binary", "hidden", "instance_uuid", "source_compute",
    "migration_type", "status", "hypervisor_hostname_pattern", "with_servers", "reserved", "is_public", "minRam",
    "minDisk", "offset", "name", "id", "owner", "visibility", "member_status", "size_min", "size_max", "sort", "tag",
    "created_at", "updated_at", "protected", "os_hidden", "disk_format", "container_format", "enabled", "domain_id",
    "scope.project.id", "user.id", "role.id", "include_names", "effective", "shutdown_type", "shutdown_timeout",
    "usage", "start", "end", "detailed", "tenant_id", "all_projects", "type", "interface", "service_id", "force",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrong:
    """One request."""

    method: str
    path: str
    body: bytes
    kind: str
    version: str

    def __str__(self) -> str:
        return f"{self.method} {self.path[:160]} {self.version} {self.kind} {self.body[:300]!r}"


def routes() -> list[str]:
    """Every path of the three APIs: `/compute/v2.1/servers/<server_id>`."""
    found = {path for path in _paths("/", get_resolver().url_patterns) if not path.endswith("/")}
    ours = (path for path in found if path.startswith(("/compute", "/identity", "/image")))
    return sorted(path for path in ours if "<url_project>" not in path)


def requests(seed: int, number: int, known: dict[str, list[str]]) -> Iterator[Wrong]:
    """So many. `known`: for each parameter of paths values that exist."""
    chance, every = random.Random(seed), routes()
    for _ in range(number):
        yield _request(chance, every, known)


def _paths(start: str, patterns: list[Any]) -> Iterator[str]:
    for pattern in patterns:
        text = str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _paths(start + text, pattern.url_patterns)
        elif isinstance(pattern, URLPattern) and "^" not in text:
            yield _PARAMETER.sub(r"<\1>", start + text)


def _request(chance: random.Random, every: list[str], known: dict[str, list[str]]) -> Wrong:
    route = chance.choice(every)
    method, body = "GET", b""
    if chance.random() < 0.75:
        method, where, good = chance.choice([*BODIES, ("POST", "servers/<server_id>/action", _action(chance))])
        route = min((one for one in every if one.endswith(f"/{where}")), key=len)
        body = _spoilt(chance, good, known)
    elif chance.random() < 0.4:
        method = chance.choice(["DELETE", "PUT", "POST", "PATCH", "HEAD", "OPTIONS"])
    path = _PARAMETER.sub(lambda found: _value_for(chance, found[1], known, method), route)
    if method in ("GET", "DELETE") or chance.random() < 0.1:
        names = [chance.choice(QUERY_NAMES) for _ in range(chance.randrange(4))]
        path += "?" + "&".join(f"{name}={_quoted(chance, _word(chance)[:2000])}" for name in names)
    kind = chance.choice(["application/json"] * 60 + ["", "text/plain", "application/json; charset=x"])
    if "images/" in route and method == "PATCH":
        kind = "application/openstack-images-v2.1-json-patch"
    if route.endswith("/file") and method == "PUT":
        kind = "application/octet-stream"
    return Wrong(method, path, body, kind, f"2.{chance.choice([1, 26, 54, 75, 96, microversion.MAXIMUM[1]])}")


def _value_for(chance: random.Random, name: str, known: dict[str, list[str]], method: str) -> str:
    spoil = 0.9 if method == "DELETE" else 0.25
    if name in known and chance.random() > spoil:
        return quote(chance.choice(known[name]), safe="")
    return _quoted(chance, _word(chance)[:2000] or "x")


def _word(chance: random.Random) -> str:
    return chance.choice(chance.choice([CONTROLS, TEXTS, DIGITS]))


def _quoted(chance: random.Random, text: str) -> str:
    """Percent-encoded; now and then not UTF-8."""
    return "%ff%fe" if chance.random() < 0.05 else quote(text, safe="")


def _action(chance: random.Random) -> dict[str, Any]:
    """One that the API takes, with a value like its schema."""
    action = chance.choice([one for one in registry.every().values() if one.key])
    schema = action.schema(microversion.MAXIMUM)
    return {action.key: like(chance, schema)}


def like(chance: random.Random, schema: Any) -> Any:
    """A value that a schema would take, more or less."""
    if not isinstance(schema, dict):
        return None
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return like(chance, chance.choice(schema[several]))
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kinds = schema.get("type", "null")
    kind = chance.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "object":
        required = schema.get("required", ())
        known = schema.get("properties", {})
        wanted = [name for name in known if name in required or chance.random() < 0.5]
        return {name: like(chance, known[name]) for name in wanted}
    if kind == "array":
        return [like(chance, schema.get("items", {"type": "string"}))]
    if schema.get("format"):
        return {"ipv4": "192.0.2.1", "ipv6": "2001:db8::1"}.get(schema["format"], "x")
    return {"integer": 1, "number": 1, "boolean": True, "null": None}.get(kind, chance.choice(["1", "a", UUID, "nova"]))


def _spoilt(chance: random.Random, good: Any, known: dict[str, list[str]]) -> bytes:
    """As bytes, with something wrong in one place, mostly."""
    text = json.dumps(good).replace("IMAGE", known["image_id"][0]).replace('"ID"', f'"{known["server_id"][0]}"')
    body = json.loads(text)
    how = chance.random()
    if how < 0.75:
        body = _with_one_wrong(chance, body)
    text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    if how > 0.97:
        return text.encode().replace(b'": "', b'": "\xff', 1)
    if how > 0.94:
        return re.sub(r'^\{("[^"]+": )', r'{\1{}, \1', text).encode()  # the same key twice
    if how > 0.91:
        return text.replace(": ", ": " + "[" * 200, 1).encode()
    return text.encode("utf-8", "surrogatepass")


def _with_one_wrong(chance: random.Random, value: Any) -> Any:
    """The value with one part of it, or all of it, replaced."""
    if isinstance(value, dict) and value and chance.random() < 0.93:
        key = chance.choice(list(value))
        what = chance.random()
        if what < 0.08:
            return {name: part for name, part in value.items() if name != key}
        if what < 0.16:
            return value | {chance.choice(WORDS)[:300]: value[key]}
        return value | {key: _with_one_wrong(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        return [_with_one_wrong(chance, value[0]), *value[1:]]
    kinds: list[list[Any]] = [WORDS, CONTROLS, DIGITS, NUMBERS, OTHERS]
    return chance.choice(chance.choice(kinds))
