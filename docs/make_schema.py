"""Writes tfcluster/spec/schema.json, the JSON schema of the spec, from its models: what editors check and complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from make_reference import MODELS, key_of
from pydantic import BaseModel

from tfcluster.spec.base import Key, Secret
from tfcluster.spec.policies import Backoff, JobBackoff, JobRestart, RestartSpec
from tfcluster.spec.schema import Spec

VARIABLE = r"\$\{"
FILE = Path(__file__).parent.parent / "tfcluster" / "spec" / "schema.json"


def spec_schema() -> dict[str, Any]:
    """Return the JSON schema of what a user writes, in draft 7, which editors read."""
    schema = Spec.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema["definitions"] = schema.pop("$defs")
    for each in (schema, *definitions.values()):
        each.pop("description")  # it is for readers of the code
    # A job's `restart` has the keys of the cluster's. The schema of a secret is that of the values that may be one.
    explained: dict[type[BaseModel], type[BaseModel]] = {JobRestart: RestartSpec, JobBackoff: Backoff}
    explained |= {model: model for model in MODELS.values() if model is not Secret}
    for model, reference in explained.items():
        properties = (schema if model is Spec else definitions[model.__name__])["properties"]
        for name, field in reference.model_fields.items():
            properties[name] = describe(properties[name], name, key_of(field))
    schema["required"].remove("name")  # the file's path gives one
    schema["patternProperties"] = {"^x-": {"description": "For anchors: ignored, but for what aliases refer to."}}
    accept_other_notations(schema)
    accept_variables(schema)
    for each in objects_in(schema):
        if "patternProperties" in each:
            each["additionalProperties"] = False
        if each.get("default", "") in (None, {}, []):
            del each["default"]  # editors would write it where they complete the key
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "title": "A cluster of tfcluster"}


def accept_other_notations(schema: dict[str, Any]) -> None:
    """Accept what `tfcluster.spec.load` and the models convert to the form of the models."""
    hosts = schema["properties"]["hosts"]["anyOf"]
    [named] = (each for each in hosts if each.get("type") == "object")
    [host] = named.pop("patternProperties").values()
    named["additionalProperties"] = {"anyOf": [host, {"type": "null"}]}  # a name may have ranges
    hosts.append({"type": "array", "items": {"type": "string"}, "minItems": 1})
    addresses = schema["definitions"]["Job"]["properties"]["tasks"]["anyOf"][1]
    jobs = schema["properties"]["jobs"]["patternProperties"]
    for name, job in jobs.items():
        jobs[name] = {"anyOf": [job, addresses]}


def accept_variables(schema: dict[str, Any]) -> None:
    """Accept texts with variables such as `${NAME}` where a number, true or false, or only some texts are valid."""
    for each in [*objects_in(schema)]:
        types = each.get("type")
        is_typed = not {"integer", "number", "boolean"}.isdisjoint(types if isinstance(types, list) else [types])
        if is_typed or (types == "string" and not {"pattern", "enum"}.isdisjoint(each)):
            rules = {name: each.pop(name) for name in [*each] if name not in ("description", "examples", "default")}
            each["anyOf"] = [rules, {"type": "string", "pattern": VARIABLE}]


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each schema in a schema."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects_in(each)


def describe(schema: dict[str, Any], name: str, key: Key) -> dict[str, Any]:
    """Add to the schema of a key what the reference says of it; draft 7 ignores what is beside a `$ref`."""
    schema = {"allOf": [{"$ref": schema.pop("$ref")}], **schema} if "$ref" in schema else schema
    schema.pop("title", None)
    default = f" Default: {key.default}." if key.default else ""
    example = yaml.safe_load(f"{{{name}: {key.example}}}")[name]
    return {**schema, "description": key.meaning + default, "examples": [example]}


if __name__ == "__main__":
    FILE.write_text(json.dumps(spec_schema(), indent=1, ensure_ascii=False) + "\n")
