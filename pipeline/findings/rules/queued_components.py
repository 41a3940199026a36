"""Rules on messages of COM+ queued components, [MC-COMQC], as a read returned them: K01 to K05. No Spark.

They bind the COM+ client that recorded the calls. It is no party of the read: findings name the queue manager that
first accepted its message.
"""

from __future__ import annotations

from typing import Final

from pipeline.findings.columns.call_history import QM2QM_READS, REMOTE_READ_READS, CapturedCall
from pipeline.findings.rules.registry import Violation, call_rule
from udfs.comqc import container_layout
from udfs.comqc.container_layout import DEVIATION_TEXTS
from udfs.queues.alias_groups import is_address

_READS: Final = (*QM2QM_READS, *REMOTE_READ_READS)
_DOCUMENT: Final = "MC-COMQC"


def _violation(call: CapturedCall, actual: str, section: str) -> Violation:
    return Violation(
        call, actual, subject=f"queue manager {call['source_queue_manager']}", source=f"{_DOCUMENT} {section}"
    )


def _wrong_computer_name(destination: str) -> str | None:
    """Return what names the computer in a destination, where that is not its name without a domain."""
    computer, separator, _ = destination.partition("\\")
    if destination.startswith("direct="):
        return "a URL"
    if not separator:
        return None
    if is_address(computer):
        return "an IP address"
    return "a fully qualified name" if "." in computer.strip(".") else None


def _split_section(text: str) -> tuple[str, str]:
    """Return section and statement of a text of ``container_layout``: ``[MC-COMQC] 2.2.4: statement``."""
    section, _, statement = text.removeprefix(f"[{_DOCUMENT}] ").partition(": ")
    return section, statement


def _deviation(call: CapturedCall, *numbers: int) -> Violation | None:
    """Return the violation of a message that does not follow one of some recommendations of ``container_layout``."""
    rules = [DEVIATION_TEXTS[number] for number in numbers]
    for found in call["comqc_deviations"] or ():
        if found["rule"] in rules:
            section, statement = _split_section(found["rule"])
            times = f", {found['places']} times" if found["places"] > 1 else ""
            return _violation(call, f"{statement}{times}, first at offset {found['offset']}", section)
    return None


@call_rule("K01", *_READS, needs="ok", suspects=lambda calls: calls.has("comqc_rejected"))
def container_rejected(call: CapturedCall) -> Violation | None:
    """The container breaks a rule of the format: servers must reject it, and its calls are lost."""
    if call["comqc_rejected"] is None:
        return None
    section, statement = _split_section(call["comqc_rejected"])
    return _violation(call, f"{statement}: the message must be rejected, its calls are lost", section)


@call_rule("K02", *_READS, needs="ok", suspects=lambda calls: calls.lengths("comqc_deviations") > 0)
def security_header_repeated(call: CapturedCall) -> Violation | None:
    """A security header has the Security Data of an earlier one, or a reference names what applies already.

    Security Data that differ and mean the same are not found.
    """
    return _deviation(call, container_layout.SECURITY_REPEATED, container_layout.REFERENCE_NOT_NEEDED)


@call_rule("K03", *_READS, needs="ok", suspects=lambda calls: calls.lengths("comqc_deviations") > 0)
def interface_repeated(call: CapturedCall) -> Violation | None:
    """A method header has the interface of the call before it, so that the short header would do."""
    return _deviation(call, container_layout.INTERFACE_REPEATED)


@call_rule("K04", *_READS, needs="ok", suspects=lambda calls: calls.lengths("comqc_deviations") > 0)
def target_string_differs(call: CapturedCall) -> Violation | None:
    """The Target ID String is another UUID than the Target ID. An empty string contradicts nothing."""
    return _deviation(call, container_layout.TARGET_STRING_DIFFERS)


@call_rule(
    "K05",
    *_READS,
    needs="ok",
    suspects=lambda calls: (
        calls.nonzero("is_comqc")
        & calls.text_matches("destination_queue", lambda name: _wrong_computer_name(name) is not None)
    ),
)
def queue_not_named_by_computer(call: CapturedCall) -> Violation | None:
    """The destination names the computer by an IP address, a fully qualified name or a URL.

    The case of letters and the name of the COM+ application are not known.
    """
    destination = call["destination_queue"]
    kind = _wrong_computer_name(destination) if call["is_comqc"] and destination is not None else None
    if kind is None:
        return None
    return _violation(call, f"destination {destination} names the computer by {kind}", "2.1")
