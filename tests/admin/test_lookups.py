"""What an admin list is asked for in its URL."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.urls import reverse

PAGES = {f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist": page
         for model, page in admin.site._registry.items()}  # fmt: skip
WRONG = ["((", "\0", "9" * 400, "2026-13-45"]


def filters(page):
    return [one if isinstance(one, str) else one.parameter_name for one in page.list_filter]


@pytest.mark.parametrize("name", PAGES)
def test_a_list_that_is_asked_for_a_broken_regular_expression_is_400_and_no_500(name, browser):
    browser.raise_request_exception = False
    for field in [field.name for field in PAGES[name].model._meta.concrete_fields][:3] + filters(PAGES[name]):
        answer = browser.get(f"{reverse(name)}?{urlencode({f'{field}__regex': '(('})}")
        assert answer.status_code == 400, field


def test_no_query_of_a_list_is_a_500(browser):
    browser.raise_request_exception = False
    for name, page in PAGES.items():
        asked = [f"{field}{how}" for field in filters(page) for how in ("", "__exact", "__isnull")]
        for field in [*asked, "q", "p", "o"]:
            for value in WRONG:
                answer = browser.get(f"{reverse(name)}?{urlencode({field: value})}")
                assert answer.status_code < 500, (name, field, value)
        assert browser.get(f"{reverse(name)}%00/change/").status_code == 400


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.list_filter])
def test_every_filter_of_a_list_may_be_asked_for(name, browser):
    found = browser.get(reverse(name)).context["cl"]
    for one in found.filter_specs:
        for choice in list(one.choices(found))[:3]:
            assert browser.get(reverse(name) + choice["query_string"]).status_code == 200, choice
