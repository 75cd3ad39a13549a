"""``python -m insitu_xr.cli``, for where the command itself is not on the path."""

from insitu_xr.cli import main

main()
