"""Benchmark of the application's headers and bodies: messages per second and core.

Messages of NServiceBus have 12 headers and a small XML body; others have no extension and a body that is no text. Run
from the project's folder: ``python -m bench.application [messages]``.
"""

import sys
import time

import numpy as np
import pyarrow as pa

import framework_messages as written
from bench.measure import Measure, format_report
from udfs.application.columns import KeptColumns, MessageParts, application_columns

ROWS = 20_000
BATCH_ROWS = 10_000  # as in Spark's Arrow batches
KNOWN = KeptColumns(headers=False, exception_texts=False)


def build_parts(extensions, body, body_type):
    """Return the columns of messages with these extensions and the same body."""
    rows = len(extensions)
    none, sizes = pa.nulls(rows, pa.string()), np.full(rows, len(body))
    return MessageParts(
        pa.array(extensions, pa.binary()), np.frombuffer(body * rows, np.uint8), np.arange(rows) * len(body), sizes,
        sizes, np.ones(rows, np.bool_), np.full(rows, body_type), none, none, pa.nulls(rows, pa.int64()), none,
    )  # fmt: skip


def rate(build, rows, kept):
    """Return messages per CPU second."""
    batches = [build(range(place, place + BATCH_ROWS)) for place in range(0, rows, BATCH_ROWS)]
    begin = time.process_time()
    for parts in batches:
        application_columns(parts, kept)
    return len(batches) * BATCH_ROWS / (time.process_time() - begin)


def build_nservicebus(numbers):
    headers = written.NSB_HEADERS
    ids = (headers | {"NServiceBus.MessageId": f"0f1c2b1a-9d3e-4c77-8a10-{number:012x}"} for number in numbers)
    return build_parts([written.nservicebus(each) for each in ids], written.BODY_XML, 0)


def build_failures(numbers):
    """Messages whose exceptions have texts with escaped characters: these are parsed."""
    headers = written.NSB_HEADERS | written.NSB_FAILURE
    return build_parts([written.nservicebus(headers)] * len(numbers), written.BODY_XML, 0)


def build_others(numbers):
    return build_parts([None] * len(numbers), bytes(100), 0)


def measure(rows=ROWS, repeat=3):
    """Measure messages of NServiceBus with the columns alone and with all headers, failed ones, and others."""
    cases = (
        ("NServiceBus, 12 headers", build_nservicebus, KNOWN, (20, 30)),
        ("  with all headers kept", build_nservicebus, KeptColumns(), ()),
        ("  failed, 19 headers, parsed", build_failures, KNOWN, ()),
        ("messages of no framework", build_others, KNOWN, ()),
    )
    return [
        Measure(name, max(rate(build, rows, kept) for _ in range(repeat)) / 1000, "k/s", *bounds)
        for name, build, kept, bounds in cases
    ]


if __name__ == "__main__":
    print(format_report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
