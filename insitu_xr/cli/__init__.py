"""The command ``insitu-xr``, which needs typer: it shows a dataset, and what a loader would read of it."""

from __future__ import annotations

import sys

__all__ = ["main"]

#: what typer stands on counts as typer
_NEEDED = ("typer", "click", "rich", "shellingham")


def main() -> None:
    """Run the command; without typer, say what to install."""
    try:
        from insitu_xr.cli.commands import add_commands, app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        sys.exit(
            f"insitu-xr: typer must be installed for the command, but got no module {error.name!r}; "
            "pip install insitu-xr[cli]"
        )
    add_commands()
    app(prog_name="insitu-xr")
