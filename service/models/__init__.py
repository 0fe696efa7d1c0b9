"""From an entry of models.toml to a model that can be served."""
