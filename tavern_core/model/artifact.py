"""Large data of a call, stored beside its result."""

from __future__ import annotations

from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import iso_utc

SCHEME: Final = "artifact:"
MEDIA_TYPE: Final = "[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}"
"""The pattern of a media type without parameters."""
FORMAT: Final = "artifact"
"""`format` of a parameter that takes an artifact of the caller."""
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"PK\x03\x04", "application/zip"),
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact. `tavern.artifacts.read(id)` returns its bytes."""

    id: str
    digest: str
    """``sha256:…`` of its bytes."""
    size: int
    """Bytes."""
    media_type: str
    name: str = ""
    principal: str = ""
    """Its owner."""
    created: float = 0.0
    """Seconds since the epoch, UTC."""
    expires: float = 0.0
    call_id: str = ""
    untrusted: tuple[str, ...] = ()
    """The sources of untrusted content that it may hold."""

    @property
    def uri(self) -> str:
        """``artifact:<id>``."""
        return SCHEME + self.id

    def link(self) -> dict[str, Any]:
        """A content block that links to it, in the form of MCP."""
        return {
            "type": "resource_link", "uri": self.uri, "name": self.name or self.id, "mimeType": self.media_type, "size": self.size,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "uri": self.uri,
            "digest": self.digest,
            "size": self.size,
            "mediaType": self.media_type,
            "name": self.name,
            "principal": self.principal,
            "createdAt": iso_utc(self.created),
            "expiresAt": iso_utc(self.expires) if self.expires else None,
            "callId": self.call_id or None,
            **({"untrusted": list(self.untrusted)} if self.untrusted else {}),
        }


def media_type_of(data: bytes) -> str:
    """The media type of bytes, by their beginning."""
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        return "image/webp" if data[8:12] == b"WEBP" else "audio/wav"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), "application/octet-stream")
