"""The page on which the API can be read and tried: Swagger UI, its files from a package, so no CDN is needed."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.staticfiles import StaticFiles

FILES = "/static/docs"


def install(app: FastAPI) -> None:
    """Serves the page at /docs. FastAPI's own would fetch its style and script from a CDN."""
    app.mount(FILES, StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        root = request.scope.get("root_path", "").rstrip("/")
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}{FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{FILES}/swagger-ui.css",
            swagger_favicon_url=f"{root}{FILES}/favicon.png",
        )
