"""What commands share that work without a server: the engine, options, and the files they write."""
