"""Decide which framework sent a message, by its extension and its body, and read what these say.

What does not decide is null: a wrong framework would be worse than none.
"""

from __future__ import annotations

from typing import Final

from udfs.application.application_message import ApplicationMessage, NativeFacts
from udfs.application.body_formats import BINARY_FORMATTER_TYPE, read_body_form
from udfs.application.bounded_json import as_headers, read_json_object
from udfs.application.mass_transit import is_mass_transit, read_mass_transit
from udfs.application.nservicebus import read_nservicebus
from udfs.application.rebus import KEY_PREFIXES, read_rebus
from udfs.application.variant_bodies import MARKUP, TEXT_ENCODINGS, VT_NAMES, VT_NULL
from udfs.application.wcf import PREAMBLE, read_wcf

SYSTEM_MESSAGING: Final = "System.Messaging"

_UTF7_BRACE: Final = b"+AHs"  # how a dictionary begins in UTF-7
_BRACES: Final = (b"{", b"\xef\xbb\xbf{")


def read_application_message(
    extension: bytes | None, body: bytes, body_type: int, native: NativeFacts, *, fits_vt_code: bool = False
) -> ApplicationMessage:
    """Read a message. ``body`` may be the beginning of one; ``fits_vt_code``: its size is that of its VT code."""
    message = _read_extension(extension, body, native) if extension else None
    if message is None and body.startswith(PREAMBLE):
        message = read_wcf(body)
    if message is None:
        message = ApplicationMessage()
    is_null = fits_vt_code and body_type == VT_NULL  # its body is empty
    if (body or is_null) and message.body_format is None:
        _add_body_form(message, body, body_type, fits_vt_code=fits_vt_code)
    return message


def variant_message(body_type: int, *, fits: bool) -> ApplicationMessage:
    """Return what is known of a message by the VT code of its body, and by whether the body has its size."""
    message = ApplicationMessage()
    _add_variant(message, body_type, fits=fits)
    return message


def _read_extension(extension: bytes, body: bytes, native: NativeFacts) -> ApplicationMessage | None:
    if (message := read_nservicebus(extension, native)) is not None:
        return message
    is_utf7 = extension.startswith(_UTF7_BRACE)
    if not is_utf7 and not extension.lstrip(b" \t\r\n").startswith(_BRACES):
        return None
    found = read_json_object(extension, "utf-7" if is_utf7 else "utf-8-sig")
    if found is None:
        return None
    headers = as_headers(found.members)
    prefix = next((each for each in KEY_PREFIXES if any(key.startswith(each) for key in headers)), None)
    if prefix is not None and not is_mass_transit(headers):
        message = read_rebus(headers, prefix)
    elif prefix is None and is_mass_transit(headers):
        message = read_mass_transit(headers, body, native)
    else:  # another dictionary, or one with keys of both
        return None
    message.note_error("extension", found.error)
    return message


def _add_body_form(message: ApplicationMessage, body: bytes, body_type: int, *, fits_vt_code: bool) -> None:
    if body_type in VT_NAMES:
        _add_variant(message, body_type, fits=fits_vt_code)
        if fits_vt_code and body_type in TEXT_ENCODINGS and body[0] in MARKUP:
            message.body_root = read_body_form(body, body_type, TEXT_ENCODINGS[body_type]).root
        return
    form = read_body_form(body, body_type)
    message.body_format, message.body_root = form.body_format, form.root
    if not any(field.startswith("body") for _, field, _ in message.application_errors):  # an envelope's says it already
        message.note_error("body", form.error)
    if message.framework is None:
        evidence = {(0, "xml"): "body_type 0 and XML", (BINARY_FORMATTER_TYPE, "nrbf"): "body_type 0x300 and MS-NRBF"}
        message.framework_evidence = evidence.get((body_type, form.body_format or "")) if form.root else None
        message.framework = message.framework_evidence and SYSTEM_MESSAGING


def _add_variant(message: ApplicationMessage, body_type: int, *, fits: bool) -> None:
    if not fits:
        message.application_errors.append(("malformed", "body", 0))
        return
    message.body_format = VT_NAMES[body_type]
    if message.framework is None:
        message.framework, message.framework_evidence = SYSTEM_MESSAGING, f"body_type {VT_NAMES[body_type]}"
