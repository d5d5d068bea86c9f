"""Correct forms of keys of plugin.yaml and tool files that people often write wrongly: for the repair in a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHAPES: Final[Mapping[str, str]] = {
    "nodes": "nodes: {entry: ./nodes}",
    "tools": "tools: {entry: ./tools}",
    "skills": "skills: {entry: ./skills}",
    "profiles": "profiles: {entry: ./profiles}",
    "workflows": "workflows: {entry: ./workflows}",
    "frontend": "frontend: {build: {entry: dist/index.js}}",
    "dev": "dev: {entry: web/index.ts}",
    "build": "build: {entry: dist/index.js}",
    "vanilla": "vanilla: {entry: index.js}",
    "permissions": "permissions: {hooks: [...], capabilities: [...]}",
    "ui": "ui: {inject: [...]}",
    "requires": 'requires: {host: ">=1"}',
    "dependsOn": 'dependsOn: {other-plugin: ">=1"}',
    "configOptions": "configOptions: [{key: extensions.my-plugin.option, type: string}]",
    "configSchema": "configSchema: [{key: option, type: string}]",
    "implementation": "implementation: {type: python}",
    "parameters": "parameters: {type: object, properties: {}}",
    "output": "output: {type: object}",
    "securityContext": "securityContext: {readOnly: true}",
    "examples": "examples: [{arguments: {}}]",
}
