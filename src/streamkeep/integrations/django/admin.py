"""The pages of the admin: queues, tasks with their results, and dead letters.

All pages only read, except for one button: with the permission `streamkeep.requeue_task`, a dead
letter is put into its queue again.
"""

from __future__ import annotations

import json
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_GET, require_POST

from streamkeep.integrations.django import records
from streamkeep.integrations.django.backend import StreamkeepBackend
from streamkeep.integrations.django.interface import task_backends
from streamkeep.integrations.django.models import QueuedTask
from streamkeep.integrations.django.results import resolve, time_of
from streamkeep.jobs import QueueDrainingError

_PAGE: Final = 100
_LOOKED_AT: Final = 5000  # records of one page, if a filter leaves most of them out
_STATUSES: Final = ("READY", "RUNNING", "SUCCESSFUL", "FAILED")
_NAME: Final = "streamkeep_queuedtask"


def backends() -> dict[str, StreamkeepBackend]:
    """Return the backends of the project that keep their tasks in a store, by their names."""
    found = {alias: task_backends[alias] for alias in task_backends.settings}
    return {alias: one for alias, one in found.items() if isinstance(one, StreamkeepBackend)}


@admin.register(QueuedTask)
class QueuedTaskAdmin(admin.ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tasks are enqueued by programs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        """Return the pages, in place of those of a model with a table."""
        view = self.admin_site.admin_view
        return [
            path("", view(require_GET(self.changelist_view)), name=f"{_NAME}_changelist"),
            path("letters/", view(require_GET(self.letters_view)), name=f"{_NAME}_letters"),
            path("requeue/", view(require_POST(self.requeue_view)), name=f"{_NAME}_requeue"),
            path("<str:object_id>/", view(require_GET(self.task_view)), name=f"{_NAME}_change"),
        ]

    # --- pages ----------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show queues, and the newest tasks."""
        self._check(request)
        alias, backend = _chosen(request)
        status, queue = request.GET.get("status", ""), request.GET.get("queue", "")
        shown: list[dict[str, Any]] = []
        looked, last = 0, ""
        with backend.queue("default").store.snapshot() as snapshot:
            reader = snapshot.as_bytes()
            newest_first = records.VALUES.last_first(reader, request.GET.get("before", ""))
            for result_id, data in newest_first:
                looked, last, record = looked + 1, result_id, records.decode(data)
                if record.backend == alias and queue in ("", record.queue):
                    record = resolve(snapshot, record, search=False)
                    if status in ("", record.status):
                        shown.append(_row(result_id, record))
                if len(shown) >= _PAGE or looked >= _LOOKED_AT:
                    break
            else:
                last = ""
        return self._page(
            request,
            "tasks",
            "Tasks",
            tasks=shown,
            queues=[
                {"name": name, "stats": backend.queue(name).stats()}
                for name in _queue_names(backend)
            ],
            statuses=_STATUSES,
            status=status,
            queue=queue,
            before=last,
        )

    def task_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        self._check(request)
        alias, backend = _chosen(request)
        with backend.queue("default").store.snapshot() as snapshot:
            record = records.load(snapshot.as_bytes(), object_id)
            if record is None or record.backend != alias:
                raise Http404("there is no such task, or its result has expired")
            record = resolve(snapshot, record)
        return self._page(
            request,
            "task",
            f"Task {object_id}",
            task=_row(object_id, record),
            args=json.dumps(record.args, indent=1, ensure_ascii=False),
            kwargs=json.dumps(record.kwargs, indent=1, ensure_ascii=False),
            value=json.dumps(record.value, indent=1, ensure_ascii=False),
            errors=record.errors,
            workers=record.workers,
        )

    def letters_view(self, request: HttpRequest) -> HttpResponse:
        self._check(request)
        _, backend = _chosen(request)
        found = [
            {"queue": name, "letter": one, "failed": time_of(one.failed_ms)}
            for name in _queue_names(backend)
            for one in backend.queue(name).dead_letters(count=_PAGE)
        ]
        may = request.user.has_perm("streamkeep.requeue_task")
        return self._page(request, "letters", "Dead letters", letters=found, may_requeue=may)

    def requeue_view(self, request: HttpRequest) -> HttpResponse:
        """Put a dead letter into its queue again."""
        self._check(request)
        if not request.user.has_perm("streamkeep.requeue_task"):
            raise PermissionDenied
        alias, backend = _chosen(request)
        name, letter_id = request.POST.get("queue", ""), request.POST.get("letter", "")
        if name not in _queue_names(backend):
            raise Http404("there is no such queue")
        queue = backend.queue(name)
        chosen = [one for one in queue.dead_letters() if one.id == letter_id]
        try:
            if chosen and queue.requeue(chosen[0]):
                self.message_user(request, f"The task {chosen[0].task} is in the queue again.")
            else:
                text = "That dead letter is gone: another user has requeued or removed it."
                self.message_user(request, text, messages.WARNING)
        except QueueDrainingError as error:
            self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(reverse(f"admin:{_NAME}_letters") + f"?backend={alias}")

    # --- parts ----------------------------------------------------------------------------------

    def _check(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, name: str, title: str, **context: Any) -> HttpResponse:
        alias, _ = _chosen(request)
        whole = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.model._meta,
            "aliases": sorted(backends()),
            "alias": alias,
            **context,
        }
        return TemplateResponse(request, f"admin/streamkeep/{name}.html", whole)


def _chosen(request: HttpRequest) -> tuple[str, StreamkeepBackend]:
    found = backends()
    if not found:
        raise Http404("TASKS has no backend that keeps tasks in a store")
    alias = request.GET.get("backend") or request.POST.get("backend") or next(iter(sorted(found)))
    if alias not in found:
        raise Http404(f"TASKS has no such backend; it has {', '.join(sorted(found))}")
    return alias, found[alias]


def _queue_names(backend: StreamkeepBackend) -> list[str]:
    return sorted(backend.queues) or ["default"]


def _row(result_id: str, record: records.Record) -> dict[str, Any]:
    return {
        "id": result_id,
        "record": record,
        "enqueued": time_of(record.enqueued),
        "started": time_of(record.started),
        "finished": time_of(record.finished),
        "attempts": len(record.workers),
    }
