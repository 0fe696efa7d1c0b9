"""Modules that every package may use: settings, errors, metrics, logs, threads."""
