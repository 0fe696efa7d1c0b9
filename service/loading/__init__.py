"""Loading of models: from an entry of models.toml to a model that can be served."""
