"""What to read, in which order, and what to keep: pure, numpy only, no I/O, no clock."""
