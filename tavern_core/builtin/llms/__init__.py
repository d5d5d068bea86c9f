"""The kinds of models that ``llms`` of tavern.yaml may name. Each module is imported with the first request to a model of its kind."""

from __future__ import annotations
