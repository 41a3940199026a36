"""Rules on messages of COM+ queued components, [MC-COMQC], as a read returned them: K01 to K05. No Spark.

They bind the COM+ client that recorded the calls. It is no party of the read: findings name the queue manager that
first accepted its message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pipeline.findings.columns.call_columns import AssociationCallColumns
from pipeline.findings.columns.call_history import QM2QM_READS, REMOTE_READ_READS
from pipeline.findings.rules.registry import ViolatingCalls, call_rule
from udfs.comqc import container_layout
from udfs.comqc.container_layout import DEVIATION_TEXTS
from udfs.queues.alias_groups import is_address

_READS: Final = (*QM2QM_READS, *REMOTE_READ_READS)
_DOCUMENT: Final = "MC-COMQC"
_SUBJECT: Final = "queue manager {source_queue_manager}"


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


def _deviations(calls: AssociationCallColumns, *numbers: int) -> Iterator[ViolatingCalls]:
    """Yield the messages that do not follow one of some recommendations of ``container_layout``."""
    rules = {DEVIATION_TEXTS[number] for number in numbers}

    def section_and_text(found: dict[str, Any]) -> tuple[str, str] | None:
        if found["rule"] not in rules:
            return None
        section, statement = _split_section(found["rule"])
        times = f", {found['places']} times" if found["places"] > 1 else ""
        return section, f"{statement}{times}, first at offset {found['offset']}"

    wrong, found = calls.first_of_elements("comqc_deviations", section_and_text)
    yield ViolatingCalls(wrong, "{0[1]}", (found,), subject=_SUBJECT, source=f"{_DOCUMENT} {{0[0]}}")


@call_rule("K01", *_READS, needs="ok")
def container_rejected(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The container breaks a rule of the format: servers must reject it, and its calls are lost."""
    rejected, found = calls.text_map("comqc_rejected", _split_section)
    actual = "{0[1]}: the message must be rejected, its calls are lost"
    yield ViolatingCalls(rejected, actual, (found,), subject=_SUBJECT, source=f"{_DOCUMENT} {{0[0]}}")


@call_rule("K02", *_READS, needs="ok")
def security_header_repeated(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A security header has the Security Data of an earlier one, or a reference names what applies already.

    Security Data that differ and mean the same are not found.
    """
    yield from _deviations(calls, container_layout.SECURITY_REPEATED, container_layout.REFERENCE_NOT_NEEDED)


@call_rule("K03", *_READS, needs="ok")
def interface_repeated(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A method header has the interface of the call before it, so that the short header would do."""
    yield from _deviations(calls, container_layout.INTERFACE_REPEATED)


@call_rule("K04", *_READS, needs="ok")
def target_string_differs(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The Target ID String is another UUID than the Target ID. An empty string contradicts nothing."""
    yield from _deviations(calls, container_layout.TARGET_STRING_DIFFERS)


@call_rule("K05", *_READS, needs="ok")
def queue_not_named_by_computer(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The destination names the computer by an IP address, a fully qualified name or a URL.

    The case of letters and the name of the COM+ application are not known.
    """
    wrong, kind = calls.text_map("destination_queue", _wrong_computer_name)
    actual = "destination {destination_queue} names the computer by {}"
    yield ViolatingCalls(
        wrong & calls.nonzero("is_comqc"), actual, (kind,), subject=_SUBJECT, source=f"{_DOCUMENT} 2.1"
    )
