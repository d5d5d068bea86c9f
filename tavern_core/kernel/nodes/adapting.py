"""Values of inputs as a node's annotations want them: models, dates, enums out of plain values, in streams chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

Misfit = Callable[[str, str], Exception]
"""(input, what is wrong) → what is raised."""


def adapt(adapters: Mapping[str, TypeAdapter[Any]], inputs: dict[str, Any], misfit: Misfit) -> None:
    """Put what the annotations want into `inputs`; None stays None.

    Raises:
        Exception: `misfit` of the first value that does not fit; of a stream, where it is read.
    """
    for key, adapter in adapters.items():
        value = inputs.get(key)
        if value is None:
            continue
        if isinstance(value, AsyncIterator):
            inputs[key] = _Adapted(value, adapter, key, misfit)
        elif isinstance(value, list) and value and all(isinstance(part, AsyncIterator) for part in value):
            inputs[key] = [_Adapted(part, adapter, key, misfit) for part in value]
        else:
            inputs[key] = _made(adapter, key, value, misfit)


def _made(adapter: TypeAdapter[Any], key: str, value: Any, misfit: Misfit) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise misfit(key, f"{place}: {first['msg']}" if place else first["msg"]) from None


class _Adapted(AsyncIterator[Any]):
    """A stream whose chunks are made into what its annotation says."""

    def __init__(self, stream: AsyncIterator[Any], adapter: TypeAdapter[Any], key: str, misfit: Misfit) -> None:
        self._stream, self._adapter, self._key, self._misfit = stream, adapter, key, misfit

    async def __anext__(self) -> Any:
        return _made(self._adapter, self._key, await anext(self._stream), self._misfit)

    async def aclose(self) -> None:
        """Read no further."""
        await self._stream.aclose()  # type: ignore[attr-defined]
