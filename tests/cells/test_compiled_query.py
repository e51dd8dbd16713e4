"""A query that is compiled once returns what Django would return for each of its values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Q

from cells.compiled_query import CompiledQuery
from cells.models import InstanceMapping

pytestmark = pytest.mark.django_db(databases="__all__")
BORN = datetime(2026, 11, 23, 12, 0, 0, 500, tzinfo=UTC)
COLUMNS = ("server_id", "created_at", "queued_for_delete", "cell_id")


def _after(created_at, server_id):
    later = Q(created_at__gt=created_at) | Q(created_at=created_at, server_id__gt=server_id)
    return InstanceMapping.objects.filter(later).order_by("created_at", "server_id").values_list(*COLUMNS)


@pytest.fixture
def mappings():
    born = {f"s{number}": BORN + timedelta(hours=number % 2) for number in range(6)}
    rows = (InstanceMapping(server_id=one, project_id="p", user_id="u", created_at=at) for one, at in born.items())
    return InstanceMapping.objects.bulk_create(rows)


def test_each_run_has_its_own_values(mappings):
    compiled = CompiledQuery(_after, "server_id", times=("created_at",))
    for hours in (-1, 0, 1):
        for server_id in ("", "s2", "s3", "s9"):
            asked = BORN + timedelta(hours=hours), server_id
            found = compiled.rows("default", created_at=asked[0], server_id=asked[1])
            assert found == list(_after(*asked)), asked


def test_a_query_that_no_row_can_pass_is_empty(mappings):
    compiled = CompiledQuery(lambda name: InstanceMapping.objects.filter(pk=name, pk__in=[]).values_list("pk"), "name")
    assert compiled.rows("default", name="s1") == compiled.unconverted("default", name="s1") == []


def test_a_value_that_is_missing_is_an_error(mappings):
    compiled = CompiledQuery(_after, "server_id", times=("created_at",))
    with pytest.raises(KeyError, match="server_id"):
        compiled.rows("default", created_at=BORN)
