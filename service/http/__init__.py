"""What callers see: routes, requests, answers, the OpenAPI document, the page."""
