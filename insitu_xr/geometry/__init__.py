"""Pure arithmetic on chunk grids, axes, windows and times; numpy only, no I/O."""
