"""Published frames of [MS-MQQB] section 4.1, octets as printed; the dump of the message ends inside its body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FRAMES: Final[list[dict[str, Any]]] = json.loads(Path(__file__).with_suffix(".json").read_text())["frames"]
"""What the specification prints of each frame; ``text_differs``: where its text and its octets do not agree."""


def _octets(frame: dict[str, Any]) -> bytes:
    parts = ((each, 1) if isinstance(each, str) else each for each in frame["octets"])
    return b"".join(bytes.fromhex(text) * times for text, times in parts)


PUBLISHED: Final = {frame["frame"]: _octets(frame) for frame in FRAMES}
"""The octets of each frame by its number."""
(
    PING_REQUEST, PING_ANSWER, ESTABLISH_REQUEST, ESTABLISH_ANSWER, PARAMETERS_REQUEST, PARAMETERS_ANSWER, USER_MESSAGE,
    SESSION_ACK,
) = PUBLISHED.values()  # fmt: skip
