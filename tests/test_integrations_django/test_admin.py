"""The pages of the admin, and the permission that requeuing needs."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from test_integrations_django import shop_tasks

pytestmark = pytest.mark.slow  # the tables of users, and templates

PAGE = "/admin/streamkeep/queuedtask/"


@pytest.fixture
def clients(all_tables: None) -> tuple[Client, Client, Client]:
    """Return clients of a user that may see tasks, of one that may requeue, and of neither."""
    found = []
    for name, permissions in (
        ("ann", ["view_queuedtask"]),
        ("bob", ["view_queuedtask", "requeue_task"]),
        ("cat", []),
    ):
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        found.append(client)
    return found[0], found[1], found[2]


def test_pages_show_tasks_results_and_dead_letters(backend: Any, clients: Any) -> None:
    ann, bob, cat = clients
    good, bad = shop_tasks.add.enqueue(20, 22), shop_tasks.fail.enqueue("<no stock>")
    queue = backend.queue("default")
    queue.run_until_idle()
    ready = shop_tasks.add.enqueue(1)
    page = ann.get(PAGE).content.decode()
    assert all(one.id in page for one in (good, bad, ready))
    failed = ann.get(PAGE + "?status=FAILED&queue=default").content.decode()
    assert bad.id in failed
    assert good.id not in failed
    older = ann.get(f"{PAGE}?before={bad.id}").content.decode()
    assert good.id in older
    assert bad.id not in older
    assert "42" in ann.get(f"{PAGE}{good.id}/").content.decode()
    shown = ann.get(f"{PAGE}{bad.id}/").content.decode()
    assert "ValueError: &lt;no stock&gt;" in shown
    letters = ann.get(PAGE + "letters/").content.decode()
    assert "it failed" in letters
    assert "Requeue" not in letters
    assert "Requeue" in bob.get(PAGE + "letters/").content.decode()
    for shown, words in (
        (page, "Home > Tasks"),
        (letters, "Home > Tasks > Dead letters"),
        (ann.get(f"{PAGE}{good.id}/").content.decode(), f"Home > Tasks > Task {good.id}"),
    ):
        crumbs = shown.partition('<div class="breadcrumbs">')[2].partition("</div>")[0]
        text = html.unescape(re.sub("<[^>]*>", "", crumbs)).replace("\u203a", ">")
        assert " ".join(text.split()) == words
    assert f'{PAGE}letters/?backend=default">Dead letters</a>' in page
    for client, url, status in (
        (cat, PAGE, 403),
        (cat, f"{PAGE}{good.id}/", 403),
        (cat, PAGE + "letters/", 403),
        (ann, f"{PAGE}nosuch/", 404),
        (ann, PAGE + "?backend=nosuch", 404),
        (ann, PAGE + "add/", 404),
        (Client(), PAGE, 302),
    ):
        assert client.get(url).status_code == status


def test_only_a_user_with_the_permission_requeues(backend: Any, clients: Any) -> None:
    ann, bob, _ = clients
    result = shop_tasks.fail.enqueue("once")
    queue = backend.queue("default")
    queue.run_until_idle()
    [letter] = queue.dead_letters()
    form = {"backend": "default", "queue": "default", "letter": letter.id}
    assert bob.get(PAGE + "requeue/").status_code == 405
    assert ann.post(PAGE + "requeue/", form).status_code == 403
    assert Client(enforce_csrf_checks=True).post(PAGE + "requeue/", form).status_code in (302, 403)
    queue.drain(0)
    assert "is draining" in bob.post(PAGE + "requeue/", form, follow=True).content.decode()
    queue.resume()
    assert queue.dead_letters() == [letter]
    assert bob.post(PAGE + "requeue/", form).status_code == 302
    assert queue.dead_letters() == []
    result.refresh()
    assert result.status == "READY"
    assert "is gone" in bob.post(PAGE + "requeue/", form, follow=True).content.decode()
