"""Every error the project raises on purpose, as one tree. Imports nothing of ours.

    SojournError
    |- ClientError              the request is at fault; the engine and its neighbours are unharmed
    |  |- InvalidRequest        a field is wrong (400); `param` names it
    |  |  |- ContextLengthExceeded   the prompt can never fit (400)
    |  |  '- Unsupported        a known field whose feature does not exist here (400)
    |  |- Unauthorized          no key or a wrong one (401)
    |  |- NotFound              unknown path, model or id (404)
    |  |- PayloadTooLarge       the body exceeds the limit (413)
    |  |- UnsupportedMediaType  the body is not JSON (415)
    |  '- QueueFull             the queue is at its bound (429, Retry-After)
    |- ServerError              the request was fine; we failed it
    |  |- RequestFailed         this one request failed inside the engine, a NaN for instance (500)
    |  |- RequestTimeout        it ran longer than --request-timeout allows (504)
    |  '- Unavailable           loading, draining, stuck or dead (503, Retry-After)
    '- StartupError             the process can't start: one line for the terminal, exit code 1
       |- ModelNotFound         no such path, short name or repository
       |- BadModelFile          truncated, corrupt or hostile: names the file, what was expected, what was found
       '- UnsupportedModel      an architecture, tensor type or tokenizer we do not implement, by name

The mapping to HTTP is `server/error_map.py` and nowhere else.
"""

from __future__ import annotations


class SojournError(Exception):
    """Root of the tree. `code` is a stable machine-readable word."""

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class ClientError(SojournError):
    """The request is at fault. `param` is the offending field, if one is."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.param = param


class InvalidRequest(ClientError):
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class Unsupported(InvalidRequest):
    code = "unsupported_value"


class Unauthorized(ClientError):
    code = "invalid_api_key"


class NotFound(ClientError):
    code = "not_found"


class PayloadTooLarge(ClientError):
    code = "payload_too_large"


class UnsupportedMediaType(ClientError):
    code = "unsupported_media_type"


class QueueFull(ClientError):
    """`retry_after` is in seconds."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServerError(SojournError):
    code = "server_error"


class RequestFailed(ServerError):
    code = "request_failed"


class RequestTimeout(ServerError):
    code = "request_timeout"


class Unavailable(ServerError):
    """`retry_after` is in seconds."""

    code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 5) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class StartupError(SojournError):
    code = "startup_error"


class ModelNotFound(StartupError):
    code = "model_not_found"


class BadModelFile(StartupError):
    code = "bad_model_file"


class UnsupportedModel(StartupError):
    code = "unsupported_model"
