"""Confirms and applies changes: GET shows what will happen, POST does it.

Place: /new-topic, /new-quota, /confirm/NAME and /apply/NAME; change_requests.py knows the changes.
Invariant: without --allow-changes each of them is refused (403). A POST needs the token of the confirmation page; the
state is in the URL until then, so a colleague can look at a change before it is made.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from headrace.cli.console.change_requests import CHANGES, CLIENT_QUOTAS, ChangeRequest
from headrace.cli.console.form_tokens import read_form
from headrace.cli.console.parts import ConsoleParts
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, RetryableError

READ_ONLY = "this console is read-only: start it with --allow-changes"
TYPED = "typed_name"
NOT_OURS = "the form is not of this console, or the console was restarted meanwhile: go back, load the page again"


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/new-topic, /new-quota, /confirm/NAME, /apply/NAME"""

    @app.get("/new-topic")
    def new_topic() -> Response:
        return console.pages.render("new_topic") if console.allows_changes else _refused(console, READ_ONLY)

    @app.get("/new-quota")
    def new_quota(user: str = "", client_id: str = "") -> Response:
        if not console.allows_changes:
            return _refused(console, READ_ONLY)
        return console.pages.render("new_quota", user=user, client_id=client_id, keys=CLIENT_QUOTAS)

    @app.get("/confirm/{name}")
    def confirm(name: str, request: Request) -> Response:
        change = change_of(name)
        if not console.allows_changes:
            return _refused(console, READ_ONLY)
        form = {field: request.query_params.get(field, "") for field in change.fields}
        return _confirmation(console, request, name, form)

    @app.post("/apply/{name}")
    async def apply(name: str, request: Request) -> Response:
        change = change_of(name)
        if not console.allows_changes:
            return _refused(console, READ_ONLY)
        form = await read_form(request)
        if not console.tokens.accepts(request, form):
            return _refused(console, NOT_OURS)
        fields = {field: form.get(field, "") for field in change.fields}
        return await run_in_threadpool(_apply, console, change, fields, form.get(TYPED, ""))


def change_of(name: str) -> ChangeRequest:
    """NotFoundError for an unknown name."""
    if name not in CHANGES:
        raise NotFoundError(f"no such change: {name[:40]}")
    return CHANGES[name]


def _confirmation(console: ConsoleParts, request: Request, name: str, form: dict[str, str]) -> Response:
    change, error = CHANGES[name], ""
    try:
        says = change.says(form)
        with console.link.opened() as cluster:
            change.check(cluster, form)
    except RetryableError:
        raise
    except HeadraceError as refusal:
        says, error = [], str(refusal)
    browser = console.tokens.browser_of(request)
    page = console.pages.render(
        "confirm",
        400 if error else 200,
        name=name,
        change=change,
        says=says,
        error=error,
        form=form,
        typed=form[change.types_name] if change.types_name else "",
        typed_field=TYPED,
        csrf_token=console.tokens.token(browser),
    )
    console.tokens.keep(request, page, browser)
    return page


def _apply(console: ConsoleParts, change: ChangeRequest, form: dict[str, str], typed: str) -> Response:
    if change.types_name and typed.strip() != form[change.types_name].strip():
        raise InvalidError("the name was not typed as it is: nothing was done")
    change.says(form)
    with console.link.opened() as cluster:
        change.apply(cluster, form)
    return RedirectResponse(change.then(form), 303)


def _refused(console: ConsoleParts, why: str) -> Response:
    return console.pages.render("error", 403, title="Not allowed", error=why, tried="", retries=False)
