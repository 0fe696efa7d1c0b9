"""The page of the service, on which one looks into a model."""
