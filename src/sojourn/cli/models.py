"""`sojourn pull` and `sojourn list`: the models in the cache and those that have a short name."""

from __future__ import annotations

from sojourn.cli.columns import columns
from sojourn.cli.options import DEFAULT_MODEL
from sojourn.cli.progress import fetch
from sojourn.cli.screen import size
from sojourn.weights.catalogue import CATALOGUE
from sojourn.weights.fetch import list_cached


def pull_command(name: str, *, print_path: bool) -> None:
    """Raises StartupError when the model can't be had."""
    path = fetch(name)
    print(path if print_path else f"{name} is at {path}")


def list_command() -> None:
    """One row for each short name, with the path of those that are here, then one for each other model in a cache."""
    here = list_cached()
    paths = {model.name: str(model.path) for model in here}
    rows = [("NAME", "SIZE", "PATH")]
    for name, model in CATALOGUE.items():
        default = " (default)" if name == DEFAULT_MODEL else ""
        where = paths.get(name, f"not here; `sojourn pull {name}` fetches it")
        rows.append((name + default, size(model.size), where))
    rows += [(model.name, size(model.size), str(model.path)) for model in here if model.name not in CATALOGUE]
    print(columns(rows))
