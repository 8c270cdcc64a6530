"""The routes of the dashboard. Every one of them only reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from undertow.errors import SettingError, UndertowError, UnknownNameError, UnreadableRunError
from undertow.explain.pages import page_of
from undertow.schema import QUANTITIES
from undertow.show.page import STATIC
from undertow.show.web.guard import LOOPBACK, Guard
from undertow.show.web.library import Library
from undertow.show.web.live import Streams
from undertow.store.names import known_name
from undertow.views import page_documents
from undertow.views.density import STREAMS, density_of
from undertow.views.line_points import line_of_layer, line_of_scalar
from undertow.views.run_divergence import divergence
from undertow.views.scale import scale_of, usual_of
from undertow.views.tiles import COLUMNS, DEEPEST, STATISTICS, tile_of
from undertow.views.weights_page import weights

_MOST_COLUMNS = 4096
_FARTHEST = 1 << 53  # steps: what a browser's numbers hold
_COMPRESS_FROM = 4096


def build_app(root: Path, token: str, hosts: tuple[str, ...] = LOOPBACK) -> Guard:
    """The application for the runs below `root`, behind its guard."""
    pages = Pages(Library(root))
    routes = [
        Route("/", _index),
        *(Route(f"/api/{name}", endpoint) for name, endpoint in pages.endpoints().items()),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    compress = Middleware(GZipMiddleware, minimum_size=_COMPRESS_FROM, compresslevel=1)
    app = Starlette(
        routes=routes,
        middleware=[compress],
        exception_handlers={UndertowError: _trouble, FileNotFoundError: _gone, Exception: _mistake},
    )
    return Guard(app, token, hosts)


class Pages:
    """One method per question. They run in threads: the library sees to it that a run is read by one at a time."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._streams = Streams()

    def endpoints(self) -> dict[str, Callable[[Request], Any]]:
        return {
            "runs": self.runs,
            "run": self.run,
            "times": self.times,
            "diagnosis": self.diagnosis,
            "scale": self.scale,
            "usual": self.usual,
            "tile": self.tile,
            "scalar": self.scalar,
            "line": self.line,
            "density": self.density,
            "flow": self.flow,
            "weights": self.weights,
            "divergence": self.divergence,
            "colours": self.colours,
            "explain": self.explain,
            "live": self.live,
        }

    def runs(self, request: Request) -> Response:
        found = [one.document() for one in self._library.runs()]
        return _json({"root": str(self._library.root), "runs": found})

    def run(self, request: Request) -> Response:
        identity = _text(request, "run")
        with self._library.reading(identity) as opened:
            return _json(page_documents.described(identity, opened.run))

    def times(self, request: Request) -> Response:
        with self._library.reading(_text(request, "run")) as opened:
            return _json(page_documents.times(opened.run))

    def diagnosis(self, request: Request) -> Response:
        with self._library.reading(_text(request, "run")) as opened:
            return _json(page_documents.diagnosis(opened.run, opened.judged()))

    def scale(self, request: Request) -> Response:
        with self._library.reading(_text(request, "run")) as opened:
            # A page asks before it knows what the run has: a scale of nothing is no mistake.
            known = [*QUANTITIES, *opened.run.quantities]
            return _json(scale_of(opened.run.reader, _quantity(request, known)))

    def usual(self, request: Request) -> Response:
        with self._library.reading(_text(request, "run")) as opened:
            return _json(usual_of(opened.run.reader, _quantity(request, opened.run.quantities)).tolist())

    def tile(self, request: Request) -> Response:
        level = _number(request, "level", 0, DEEPEST)
        index = _number(request, "index", 0, (_FARTHEST >> level) // COLUMNS)
        statistic = known_name(request.query_params.get("statistic", STATISTICS[0]), STATISTICS, "statistic")
        with self._library.reading(_text(request, "run")) as opened:
            quantity = _quantity(request, opened.run.quantities)
            tile = tile_of(opened.run.reader, quantity, level, index, statistic)
        headers = {"undertow-last-step": str(tile.last_step)}
        # Sent as it is: noise does not get shorter, and the way is short.
        headers["content-encoding"] = "identity"
        return Response(tile.codes.astype("<u2").tobytes(), media_type="application/octet-stream", headers=headers)

    def scalar(self, request: Request) -> Response:
        first, last, columns = _span(request)
        with self._library.reading(_text(request, "run")) as opened:
            values, steps = opened.run.scalars(_text(request, "name")), opened.run.steps
        inside = slice(*steps.searchsorted([first, last + 1]))
        return _json(page_documents.line(line_of_scalar(steps[inside], values[inside], columns)))

    def line(self, request: Request) -> Response:
        first, last, columns = _span(request)
        with self._library.reading(_text(request, "run")) as opened:
            reader = opened.run.reader
            quantity = _quantity(request, opened.run.quantities)
            layer = reader.layer_id(_number(request, "layer", 0, len(reader.layers) - 1))
            window = reader.window(quantity, first, last, columns, [layer])
        return _json(page_documents.line(line_of_layer(window)))

    def density(self, request: Request) -> Response:
        first, last, columns = _span(request)
        with self._library.reading(_text(request, "run")) as opened:
            reader = opened.run.reader
            stream = known_name(_text(request, "stream"), STREAMS, "kind of values")
            layer = reader.layer_id(_number(request, "layer", 0, len(reader.layers) - 1))
            found = density_of(reader, stream, layer, first, last, columns)
        return _json(page_documents.density(found))

    def flow(self, request: Request) -> Response:
        with self._library.reading(_text(request, "run")) as opened:
            return _json(page_documents.flow(opened.run))

    def weights(self, request: Request) -> Response:
        with self._library.reading(_text(request, "run")) as opened:
            return _json(weights(opened.run))

    def divergence(self, request: Request) -> Response:
        with self._library.reading_two(_text(request, "run"), _text(request, "other")) as (first, second):
            return _json(divergence(first.run, second.run))

    def colours(self, request: Request) -> Response:
        return _json(page_documents.colours())

    def explain(self, request: Request) -> Response:
        return _json(page_of(_text(request, "code")))

    async def live(self, request: Request) -> Response:
        identity = _text(request, "run")

        def look() -> dict[str, Any]:
            with self._library.reading(identity) as opened:
                return page_documents.progress(opened.run)

        return self._streams.follow(request, look)


def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _json(data: Any) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


async def _trouble(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, UndertowError)
    status = 404 if isinstance(problem, UnknownNameError) else 422 if isinstance(problem, UnreadableRunError) else 400
    body = {"code": problem.code, "problem": problem.message, "way_out": problem.way_out}
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def _gone(request: Request, problem: Exception) -> Response:
    """A run was deleted while it was read."""
    body = {"code": None, "problem": "a file of this run is no longer there", "way_out": "Look at the list of runs"}
    return Response(msgspec.json.encode(body), 404, media_type="application/json")


async def _mistake(request: Request, problem: Exception) -> Response:
    """One of ours. The page says so and goes on; what `serve` prints has the rest."""
    said = f"Internal error of Undertow: {type(problem).__name__}: {str(problem)[:300]}"
    body = {"code": None, "problem": said, "way_out": "The other pages may still work; `undertow serve` printed more"}
    return Response(msgspec.json.encode(body), 500, media_type="application/json")


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise SettingError(f"the request lacks {name!r}")
    return value


def _number(request: Request, name: str, least: int, most: int) -> int:
    text = _text(request, name)
    try:
        value = int(text)
    except ValueError:
        raise SettingError(f"{name} is {text[:40]!r}", way_out="It must be a whole number") from None
    if not least <= value <= most:
        raise SettingError(f"{name} is {value}", way_out=f"It must be from {least} to {most}")
    return value


def _span(request: Request) -> tuple[int, int, int]:
    return (
        _number(request, "first", 0, _FARTHEST),
        _number(request, "last", 0, _FARTHEST),
        _number(request, "columns", 1, _MOST_COLUMNS),
    )


def _quantity(request: Request, known: list[str]) -> str:
    return known_name(_text(request, "quantity"), known, "quantity")
