"""Django's `flush`, which every test that commits ends with, for a tenth of its price."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.core.management.commands import flush
from django.db import connections

# `migrate` fills these, and after every Django `flush` it does so again: most of its price
KEPT = {"django_migrations", "django_content_type", "auth_permission"}


class Command(flush.Command):
    """Empties the tables that have rows, and leaves what `migrate` wrote; Django's own when a test changed that."""

    def handle(self, **options: Any) -> None:
        """Called by Django's test case, for one database."""
        connection = connections[options["database"]]
        with connection.cursor() as cursor:
            cursor.execute(question(options["database"]))
            changed = {name for (name,) in cursor.fetchall()}
        if changed & KEPT:
            super().handle(**options)
        else:
            connection.ops.execute_sql_flush([f"DELETE FROM {connection.ops.quote_name(name)}" for name in changed])


@cache
def question(database: str) -> str:
    """Which tables have rows, or no longer as many as the first test left of what is kept."""
    connection = connections[database]
    tables = set(connection.introspection.django_table_names(only_existing=True, include_views=False))
    with connection.cursor() as cursor:
        return " UNION ALL ".join(
            f"SELECT '{name}' WHERE {_kept(cursor, name) if name in KEPT else f'EXISTS (SELECT 1 FROM {name})'}"
            for name in sorted(tables | KEPT & set(connection.introspection.table_names()))
        )


def _kept(cursor: Any, name: str) -> str:
    cursor.execute(f"SELECT count(*) FROM {name}")
    return f"(SELECT count(*) FROM {name}) <> {cursor.fetchone()[0]}"
