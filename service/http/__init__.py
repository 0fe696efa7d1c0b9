"""The HTTP interface: routes, requests, answers, the OpenAPI document."""
