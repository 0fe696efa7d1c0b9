"""The service in one process: the app, or the pipeline alone, with the engine beside it."""
