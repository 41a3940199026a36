"""Violating and innocent stories for the rules of qmmgmt; the test queue manager encodes their stubs."""

from __future__ import annotations

from findings.exchanges import Story, call, error
from peer.idl import Variant
from peer.methods import METHODS
from peer.mgmt import machine_object, queue_object, session_object

ORDERS, NAME = "srv1\\private$\\orders", "OS:srv1\\private$\\orders"
OUT = "OS:far\\private$\\inbox"
NULL, TEXT, NUMBER, BLOB, TEXTS = 1, 31, 19, 65, 0x101F
_INFO = next(method for method in METHODS.values() if method.name == "R_QMMgmtGetInfo")
MACHINE, QUEUE, SESSION = machine_object(), queue_object(NAME), session_object()
_KINDS = {1: "machine", 2: "queue", 3: "session"}


def info(at, target=QUEUE, hresult=0, *, asked=None, name=NAME, **values):
    """A GetInfo of these properties (``p11=Variant(...)``): request, response and decoded columns."""
    ids = [int(key[1:]) for key in values]
    empty = [Variant(NULL) for _ in ids] if asked is None else asked
    request = _INFO.request({"pObjectFormat": target, "cp": len(ids), "aProp": ids, "apVar": empty}, ndr64=False)
    response = _INFO.response({"apVar": list(values.values()), "return": hresult}, ndr64=False)
    columns = {
        "object_type": _KINDS[target["type"]],
        "property_ids": ids,
        "request_stub": request,
        "response_stub": response,
    }
    if target["type"] == 2:
        columns |= {"queue_format_name": f"DIRECT={name}", "queue": name.split(":")[1].lower()}
    return call("qmmgmt", 0, at, hresult, **columns)


def act(at, word, hresult=0, target=QUEUE, name=NAME, **security):
    columns = {"object_type": _KINDS[target["type"]], "action": word}
    if target["type"] == 2:
        columns |= {"queue_format_name": f"DIRECT={name}", "queue": name.split(":")[1].lower()}
    return call("qmmgmt", 1, at, hresult, **columns, **security)


def text(value):
    return Variant(TEXT, value)


def rules():
    count, state = {"p7": Variant(NUMBER, 5)}, {"p11": text("LOCAL CONNECTION")}
    failed = {"p7": Variant(NULL)}
    bad = {"fault": 0x6F7, "hresult": None}
    yield (
        "M01",
        [call("qmmgmt", 1, 1, errors=error("request", "pObjectFormat.type"), **bad)],
        [act(1, "TIDY", 0, MACHINE)],
    )
    yield "M02", [call("qmmgmt", 0, 1, property_ids=[1] * 129, object_type="machine", **bad)], [info(1, **count)]
    yield "M03", [info(1, asked=[Variant(NUMBER, 1)], **count)], [info(1, **count)]
    yield "M04", [info(1, MACHINE, 0xC00E0039, p9=Variant(NULL))], [info(1, MACHINE, p4=text("CONNECTED"))]
    yield "M05", [info(1, MACHINE, p9=Variant(NUMBER, 1))], [info(1, MACHINE, p9=Variant(NULL))]
    yield "M06", [info(1, SESSION, p1=Variant(NULL))], [info(1, SESSION, 0xC00E0006, p1=Variant(NULL))]
    yield "M07", [info(1, p7=text("5"))], [info(1, **count)]
    yield "M08", [info(1, p11=text("ASLEEP"))], [info(1, **state)]
    yield "M09", [info(1, QUEUE, 0xC00E0003, **count)], [info(1, QUEUE, 0xC00E0003, **failed)]
    yield "M11", [act(1, "EXPLODE", 0xC00E0006)], [act(1, "resume")]
    yield "M12", [act(1, "EXPLODE")], [act(1, "EXPLODE", 0xC00E0006)]
    yield "M13", [act(1, "PAUSE", 0xC00E0006, MACHINE)], [act(1, "tidy", 0, MACHINE)]
    local, remote = info(1, p4=text("LOCAL")), info(1, p4=text("REMOTE"))
    yield "M14", [local, act(2, "PAUSE")], [remote, act(2, "PAUSE")]
    listed = [info(at, MACHINE, p2=Variant(TEXTS, ["srv1\\private$\\other"])) for at in (1, 3)]
    there = [info(at, MACHINE, p2=Variant(TEXTS, ["srv1\\private$\\orders"])) for at in (1, 3)]
    yield "M16", [*listed, info(2, p4=text("LOCAL"))], [*there, info(2, p4=text("LOCAL"))]
    paused = act(1, "PAUSE", name=OUT)
    held = {"p11": text("ONHOLD"), "p4": text("REMOTE")}
    out = queue_object(OUT)
    yield "M17", [paused, info(2, out, name=OUT, p11=text("CONNECTED"))], [paused, info(2, out, name=OUT, **held)]
    yield "M18", [info(1, p13=Variant(BLOB, bytes(12)))], [info(1, p13=Variant(BLOB, bytes(16)))]
    old, new = (info(1, MACHINE, p5=text(f"Windows {version}")) for version in ("5.2.3790", "6.1.7601"))
    yield "M19", [old, info(2, p26=Variant(NUMBER, 0))], [new, info(2, p26=Variant(NUMBER, 0))]
    refused = act(2, "DISCONNECT", 5, MACHINE, auth_level=None)
    yield "M21", [act(1, "DISCONNECT", 0, MACHINE, auth_level=None)], [refused, act(3, "DISCONNECT", 0, MACHINE)]


STORIES = {rule: (Story(violating), Story(innocent)) for rule, violating, innocent in rules()}
