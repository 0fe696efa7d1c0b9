"""Parameters as OpenAPI has them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def inlined(model: type[BaseModel]) -> dict[str, Any]:
    """A model's JSON schema without references, to stand anywhere in a document."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(definitions[node["$ref"].rpartition("/")[2]])
            return {key: resolve(value) for key, value in node.items()}
        return [resolve(value) for value in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def parameter_schemas(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The model's fields as OpenAPI query parameters."""
    properties = inlined(model)["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.pop("description", ""),
            "schema": {key: value for key, value in schema.items() if key != "title"},
        }
        for name, schema in properties.items()
    ]
