"""Owns the commands' names, arguments and exit codes. Their work is in files imported when they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sojourn.cli.library_pools import limit_library_pools
from sojourn.cli.options import DEFAULT_MODEL, MODEL_HELP, flag, setting_sources, settings, with_options
from sojourn.errors import SojournError
from sojourn.timeline.system import SystemFacts

app = typer.Typer(
    name="sojourn",
    help="An LLM inference engine and OpenAI-compatible server that accounts for the whole life of every request.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # boxes would cut long flag names at 80 columns, and cost start-up time
    pretty_exceptions_enable=False,  # a traceback is for us; users get one line, see run()
)
bench = typer.Typer(
    help="Measure a running server (serve), or an engine in this process (offline).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, envvar="SOJOURN_MODEL", show_envvar=False)]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")]
# What a model that runs without a server can be given.
GENERATE_OPTIONS = ("max_model_len", "threads", "backend", "kv_cache_memory", "kv_cache_dtype")
OFFLINE_OPTIONS = (*GENERATE_OPTIONS, "num_kv_blocks", "max_num_batched_tokens")
CHAT_OPTIONS = (*GENERATE_OPTIONS, "chat_template")


@app.command()
@with_options()
def serve(context: typer.Context, model: Model = DEFAULT_MODEL, **options: Any) -> None:
    """Serve a model over the OpenAI API. Every flag can also be set as SOJOURN_<FLAG> or in --config."""
    settled = settings(model, options)
    from sojourn.cli.serve import serve_command  # here: the server's imports take longer than --help may

    serve_command(settled, SystemFacts(settings=setting_sources(context, model, options)))


@app.command()
@with_options(CHAT_OPTIONS)
def chat(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    *,
    url: Annotated[str | None, typer.Option(help="Talk to a server instead, e.g. http://127.0.0.1:8000.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key.", envvar="SOJOURN_API_KEY")] = None,
    system: Annotated[str | None, typer.Option(help="System message for the conversation.")] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Longest reply in tokens.")] = 1024,
    **options: Any,
) -> None:
    """Talk to a model in the terminal. /clear starts over, /exit leaves."""
    local = [name for name in ("model", *CHAT_OPTIONS) if _is_given(context, name)]
    if url is not None and local:
        words = ["MODEL" if name == "model" else flag(name) for name in local]
        raise typer.BadParameter(f"the server at {url} has its model already; leave out {', '.join(words)}.")
    settled = settings(model, options)
    from sojourn.cli.chat import chat_command  # here: its imports take longer than --help may
    from sojourn.records import SamplingParams

    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    chat_command(settled, url=url, api_key=api_key, system=system, params=params)


@app.command()
@with_options(GENERATE_OPTIONS)
def generate(
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="Text to continue.")],
    model: Model = DEFAULT_MODEL,
    *,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Longest continuation in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    **options: Any,
) -> None:
    """Continue a text and print what the model writes as it comes."""
    settled = settings(model, options)
    from sojourn.cli.generate import generate_command  # here: its imports take longer than --help may
    from sojourn.records import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    generate_command(settled, prompt, params)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Short name (see `sojourn list`) or hub repository.")],
    print_path: Annotated[bool, typer.Option("--print-path", help="Print only the path of the file.")] = False,
) -> None:
    """Fetch a model into the cache, verified by its checksum; an interrupted download goes on where it stopped."""
    from sojourn.cli.models import pull_command  # here: network libraries take longer than --help may

    pull_command(name, print_path=print_path)


@app.command("list")
def list_() -> None:
    """Show the models in the cache and those that have a short name."""
    from sojourn.cli.models import list_command  # here: network libraries take longer than --help may

    list_command()


@app.command()
def doctor(
    model: Model = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address whose port is checked.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that is checked.")] = 8000,
) -> None:
    """Check what a model would run on: instruction sets, threads, memory, bandwidth, model file, port."""
    from sojourn.cli.doctor import doctor_command  # here: NumPy takes longer than --help may

    doctor_command(model, host=host, port=port)


@app.command()
def trace(
    request_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The `id` of a reply, also its x-request-id header.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The request that arrived last.")] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A saved answer of /v1/requests/ID instead of a server.")
    ] = None,
    *,
    url: Annotated[str, typer.Option(help="The server that has the record.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(help="The server's key.", envvar="SOJOURN_API_KEY")] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the table.")] = "en",
) -> None:
    """Show where the time of a request went: a line for each step, then its time to first token in parts."""
    if [request_id is not None, last, file is not None].count(True) != 1:
        raise typer.BadParameter("give one of ID, --last and --file FILE.")
    from sojourn.cli.remote_server import RemoteServer  # here: http libraries take longer than --help may
    from sojourn.cli.trace import trace_command

    trace_command(request_id, file, RemoteServer(url, api_key), lang)


@bench.command("serve")
def bench_serve(
    *,
    url: Annotated[str, typer.Option(help="An OpenAI-compatible server, of any make.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Name to ask for. Default: the first the server lists.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key.", envvar="SOJOURN_API_KEY")] = None,
    api: Annotated[Literal["completions", "chat"], typer.Option(help="Route that is asked.")] = "completions",
    requests: Annotated[int, typer.Option(min=1, help="How many requests to send.")] = 16,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most requests at once. Default: 1, or no limit with --rate.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Poisson arrivals a second.")] = None,
    prompt_words: Annotated[int, typer.Option(min=1, help="Mean length of a prompt.")] = 100,
    prompt_spread: Annotated[float, typer.Option(min=0, max=1, help="Share by which lengths differ.")] = 0.5,
    prefix_words: Annotated[int, typer.Option(min=0, help="Further words that all prompts begin with.")] = 0,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", min=1, help="Tokens of each reply.")] = 64,
    seed: Annotated[int, typer.Option(help="The same seed gives the same prompts and arrivals.")] = 1,
    json: JsonFile = None,
) -> None:
    """Send requests to a running server and report what its clients see."""
    limit_library_pools()
    from sojourn.bench.http_load import Load  # here: its imports take longer than --help may
    from sojourn.cli.bench_serve import bench_serve_command

    load = Load(
        requests=requests,
        concurrency=concurrency or (1 if rate is None else None),
        rate=rate,
        prompt_words=prompt_words,
        prompt_spread=prompt_spread,
        prefix_words=prefix_words,
        max_tokens=max_tokens,
        seed=seed,
    )
    bench_serve_command(url, model, load, api=api, api_key=api_key, json=json)


@bench.command("offline")
@with_options(OFFLINE_OPTIONS)
def bench_offline(
    model: Model = DEFAULT_MODEL,
    *,
    streams: Annotated[
        list[int],
        typer.Option(
            min=1,
            default_factory=lambda: [1, 4, 8, 16],
            show_default="1 4 8 16",
            help="Decoded at once; may be repeated.",
        ),
    ],
    context_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of each stream.")] = 128,
    output_tokens: Annotated[int, typer.Option("-n", "--output-tokens", min=3, help="Tokens of each stream.")] = 64,
    prefill_tokens: Annotated[
        list[int],
        typer.Option(
            min=1, default_factory=lambda: [800], show_default="800", help="Prompt computed; may be repeated."
        ),
    ],
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each row; medians are shown.")] = 3,
    json: JsonFile = None,
    **options: Any,
) -> None:
    """Measure decode steps and prefill in this process, beside what the memory could give at most."""
    settled = settings(model, options)
    limit_library_pools()
    from sojourn.cli.bench_offline import Offline, bench_offline_command  # here: it imports NumPy

    wanted = Offline(
        streams=streams,
        context_tokens=context_tokens,
        output_tokens=output_tokens,
        prefill_tokens=prefill_tokens,
        repeats=repeats,
    )
    bench_offline_command(settled, wanted, json)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _version(asked: bool) -> None:
    if asked:
        from sojourn import __version__  # here: only this flag needs it

        print(f"sojourn {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """The group's own flags; the work is the commands'."""


def run() -> None:
    """Entry point. An error raised on purpose is one line on stderr and exit code 1; others show a traceback."""
    try:
        app()
    except SojournError as error:
        print(f"sojourn: {' '.join(error.message.split())}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
