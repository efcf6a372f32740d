"""The run directory on disk: its layout, and one reader and one writer per file. Start reading with `layout`."""
