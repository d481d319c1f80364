"""The local page over the whole store: a server for this machine alone, which reads and never writes."""

import hmac
import json
import re
import secrets
import sys
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ergometer.core.errors import ErgoError, UsageError
from ergometer.core.sensor import read_text
from ergometer.report import comparison, html, trace
from ergometer.report.details import brief, details
from ergometer.store.database import Store
from ergometer.store.home import PROGRESS

ADDRESS = "127.0.0.1"


class Server(ThreadingHTTPServer):
    """Answers whoever knows its token, through the loopback alone."""

    daemon_threads = True

    def __init__(self, store: Store, port: int):
        self.store = store
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or "no such port"
            raise UsageError(
                f"port {port} cannot be used ({why.lower()}): choose another with --port, or leave it out."
            ) from error

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it was written to is nothing to report."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "ergometer", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not self._allowed(asked):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", ["Open the address that `ergo ui` printed.\n"])
            return
        try:
            kind, pieces = self._answer(parts.path, asked)
        except ErgoError as error:
            self._send(HTTPStatus.BAD_REQUEST, "application/json", [html.to_text({"error": str(error)})])
        else:
            self._send(HTTPStatus.OK, kind, pieces)

    def _allowed(self, asked: dict[str, str]) -> bool:
        """Only with the token, and only by this machine's name: another site's name that leads here is refused."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        return host in (ADDRESS, "localhost") and hmac.compare_digest(
            asked.get("token", "").encode(), self.server.token.encode()
        )

    def _answer(self, path: str, asked: dict[str, str]) -> tuple[str, Iterable[str]]:
        store = self.server.store
        if path == "/":
            return "text/html", html.page(None)
        if path == "/api/runs":
            return "application/json", [html.to_text(_listing(store, asked.get("known", "")))]
        if path == "/api/compare":
            return "application/json", [html.to_text(_compared(store, asked.get("a", ""), asked.get("b", "")))]
        if match := re.fullmatch(r"/api/runs/([\w-]+)", path):
            return "application/json", [html.to_text(_run(store, match[1]))]
        if match := re.fullmatch(r"/runs/([\w-]+)\.html", path):
            record = store.get(match[1])
            return "text/html", html.report({record.id: details(record)})
        if match := re.fullmatch(r"/runs/([\w-]+)\.trace\.json", path):
            record = store.get(match[1])
            spans, samples, _ = trace.opened(record)
            return "application/json", trace.trace_of(record, spans, samples)
        raise UsageError("there is no such page.")

    def _send(self, status: HTTPStatus, kind: str, pieces: Iterable[str]) -> None:
        """Piece by piece, so that a long trace is never held whole."""
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Transfer-Encoding": "chunked",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        waiting, size = [], 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size > 1 << 16:
                self._chunk("".join(waiting))
                waiting, size = [], 0
        self._chunk("".join(waiting))
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is the user's, and the token is in every address."""


def _listing(store: Store, known: str) -> dict[str, Any]:
    """What a list shows of every run, newest first; only that nothing changed, where nothing has."""
    rows = store.listing()
    version = f"{len(rows)}-{hash(tuple((row[0], row[2]) for row in rows)):x}"
    return {"version": version} if version == known else {"version": version, "rows": rows}


def _run(store: Store, run: str) -> dict[str, Any]:
    """A run that goes on with how far it is; one that has ended in full."""
    record = store.get(run)
    if record.status != "running":
        return details(record)
    text = read_text(Path(record.directory) / PROGRESS)
    return brief(record) | {"progress": json.loads(text) if text else {}}


def _compared(store: Store, first: str, second: str) -> dict[str, Any]:
    a, b = (store.find(text, status="ok") for text in (first, second))
    return {
        "rows": comparison.as_json(comparison.rows(a, b, [])),
        "sides": [[brief(record) for record in side] for side in (a, b)],
        "differing": comparison.differing(a, b),
        "remarks": comparison.remarks(a, b),
    }
