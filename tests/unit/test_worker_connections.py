"""A worker keeps a connection for the next task of its thread, but not for one that comes much later."""

from __future__ import annotations

import pytest
from django.db import connections as django_connections

from tasks import connections

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_it_is_kept_for_a_task_that_follows_at_once_and_closed_for_a_later_one(cells, monkeypatch):
    alias = cells["cell1"].alias
    closed = []
    monkeypatch.setattr(django_connections[alias], "close", lambda: closed.append(alias))
    connections.note_use()
    connections.renew()
    assert closed == []
    monkeypatch.setattr(connections, "KEEP", -1.0)
    connections.renew()
    assert closed == [alias]
