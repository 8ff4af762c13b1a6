"""Turns the options of config.py into command-line flags, and what the user gave back into configurations.

Owns the rules of precedence (flag, then SOJOURN_<FLAG>, then --config FILE.yaml, then default) and the refusal of flags
whose feature is not built yet. Owns no option: names, defaults and help come from the dataclass fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from sojourn.config import CacheConfig, EngineConfig, FrontendConfig, SchedulerConfig, ServerConfig
from sojourn.errors import StartupError
from sojourn.timeline.system import Setting, Source

DEFAULT_MODEL = EngineConfig().model
MODEL_HELP = "GGUF file, Hugging Face directory, short name (see `sojourn list`) or hub repository org/name."
CONFIGS = (ServerConfig, FrontendConfig, EngineConfig, SchedulerConfig, CacheConfig)

SECRET_OPTIONS = frozenset({"api_key"})
_SOURCES: dict[str, Source] = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "config file"}
# Flags of features that come later. They are known, so that nobody looks for a typing error, and refused.
NOT_BUILT_FLAGS: dict[str, type] = {
    "tool_call_parser": str,
    "reasoning_parser": str,
}
# The values of known flags that can be had today, where more are planned.
BUILT_VALUES: dict[str, tuple[str, ...]] = {
    "backend": ("auto", "native", "reference"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the command line settled, each part for the component it is named after."""

    server: ServerConfig
    frontend: FrontendConfig
    engine: EngineConfig

    def offline(self) -> Settings:
        """The same without a server: the engine is a thread, and its death is not survived."""
        return dataclasses.replace(self, server=dataclasses.replace(self.server, in_process=True, no_restart=True))


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def option_fields(only: Iterable[str] | None = None) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """Every user-visible option: name -> (field, its type). Fields without help text are internal and no flags."""
    found = {}
    for config in CONFIGS:
        hints = get_type_hints(config)
        for field in dataclasses.fields(config):
            if "help" in field.metadata:
                found[field.name] = (field, hints[field.name])
    return found if only is None else {name: found[name] for name in only}


def with_options(only: Iterable[str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of the options (all of them, or `only` those), as typer reads them from a signature.

    The command declares its own parameters and takes the options as **options, whose values go into `settings()`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        fields = option_fields(only)
        # Resolved here: typer can't resolve the strings of postponed annotations once the signature is replaced.
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        added = [_parameter(name, field, hint) for name, (field, hint) in fields.items()]
        added += [_not_built(name, kind) for name, kind in NOT_BUILT_FLAGS.items() if only is None]
        added.append(_config_parameter({*fields, *(NOT_BUILT_FLAGS if only is None else ())}))
        parameters = [*own, *added]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def settings(model: str, options: Mapping[str, Any]) -> Settings:
    """Configurations from the values typer collected. Raises StartupError for a feature that is not built yet."""
    for name in NOT_BUILT_FLAGS:
        if options.get(name):
            raise StartupError(f"{flag(name)} is not built yet; leave it out.")
    for name, built in BUILT_VALUES.items():
        if options.get(name, built[0]) not in built:
            raise StartupError(f"{flag(name)} {options[name]} is not built yet; use {' or '.join(built)}.")

    def make(config: type[Any], **more: Any) -> Any:
        names = {field.name for field in dataclasses.fields(config) if "help" in field.metadata} & options.keys()
        return config(**{name: _as_field(options[name]) for name in names}, **more)

    engine = make(EngineConfig, model=model, scheduler=make(SchedulerConfig), cache=make(CacheConfig))
    return Settings(server=make(ServerConfig), frontend=make(FrontendConfig), engine=engine)


def setting_sources(context: typer.Context, model: str, options: Mapping[str, Any]) -> list[Setting]:
    """Every option of the running command with where its value came from; keys are counted, not shown."""
    found = []
    for name, value in {"model": model, **options}.items():
        if name in NOT_BUILT_FLAGS or name == "config":
            continue
        source = context.get_parameter_source(name)
        shown = f"{len(value)} keys" if name in SECRET_OPTIONS and value else value
        found.append(Setting(name, shown, _SOURCES.get(source.name if source else "DEFAULT", "default")))
    return found


def _as_field(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parameter(name: str, field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    words, default = [flag(name)], field.default
    extra: dict[str, Any] = {}
    if hint is bool and default:
        words = [f"{flag(name)}/{flag('no_' + name)}"]
    elif get_origin(hint) is tuple:
        hint, default = list[str], []
        extra["show_default"] = False
    elif hint == int | None:  # None is written "auto"
        extra |= {"parser": _int_or_auto, "metavar": "N|auto"}
    elif name in BUILT_VALUES and get_args(hint):
        hint = str  # a free word here: `settings` says which of the planned values can be had
        extra["metavar"] = "|".join(BUILT_VALUES[name])
    text = field.metadata["help"]
    option = typer.Option(*words, help=text, envvar=f"SOJOURN_{name.upper()}", show_envvar=False, **extra)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option])


def _not_built(name: str, kind: type) -> inspect.Parameter:
    option = typer.Option(flag(name), envvar=f"SOJOURN_{name.upper()}", hidden=True)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[bool if kind is bool else str | None, option],
    )


def _int_or_auto(text: str) -> int | None:
    return None if text == "auto" else int(text)


def _config_parameter(known: set[str]) -> inspect.Parameter:
    def load(context: typer.Context, path: str | None) -> str | None:
        if path is not None:
            context.default_map = read_config_file(Path(path), known)
        return path

    # Eager: its values must be there before the other flags look for their defaults.
    option = typer.Option(
        "--config",
        metavar="FILE.yaml",
        is_eager=True,
        callback=load,
        envvar="SOJOURN_CONFIG",
        show_envvar=False,
        help="File with options, named like the flags without dashes in front.",
    )
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def read_config_file(path: Path, known: set[str]) -> dict[str, Any]:
    """Options from a YAML file, keys spelled with dashes or underscores. Raises StartupError on a key nobody knows."""
    import yaml  # here to keep --help quick

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--config: can't read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise StartupError(f"--config: {path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise StartupError(f"--config: {path} must hold `option: value` lines.")
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known | {"model"}:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f" Did you mean {near[0].replace('_', '-')}?" if near else ""
            raise StartupError(f"--config: {path} has the unknown option {key!r}.{hint}")
        values[name] = _as_flag_value(name, value)
    return values


def _as_flag_value(name: str, value: Any) -> Any:
    """What the command line would have carried: text, and a list for a flag that may be repeated."""
    fields = option_fields()
    if name not in fields:
        return value
    hint = fields[name][1]
    if get_origin(hint) is tuple:
        return [str(item) for item in (value if isinstance(value, list) else [value])]
    return value if hint is bool or value is None else str(value)
