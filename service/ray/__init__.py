"""The names under which Ray Serve is told of the service; `service.features.ray` has the code."""
