"""Lines of snapshot files for tests, as a collector writes them."""

import json

AT = "2024-05-01T12:00:00.000000Z"


def machine(name="qm1", at=AT, **more):
    listed = [f"{name}\\private$\\a", f"{name}\\private$\\b"]
    properties = [(2, 0x101F, json.dumps(listed)), (3, 1, None), (4, 31, '"CONNECTED"'), (6, 20, "7")]
    return line("machine", None, properties, name=name, at=at) | more


def queue(number=7, name="qm1", which="a", at=AT, **more):
    path = f"{name}\\private$\\{which}"
    properties = [
        (1, 31, json.dumps(path)),
        (4, 31, '"LOCAL"'),
        (7, 19, str(number)),
        (9, 19, "0"),
        (0x7FFF0001, 19, "5"),
    ]
    return line("queue", f"DIRECT=OS:{path}", properties, name=name, at=at) | more


def line(kind, format_name, properties, *, name="qm1", at=AT):
    return {
        "version": 1, "queue_manager": name, "server_address": "10.0.0.1", "object_type": kind,
        "format_name": format_name, "asked_at": at, "collected_at": at.replace("0Z", "5Z"), "hresult": 0,
        "error": None,
        "properties": [{"property_id": n, "vt": vt, "value_json": value} for n, vt, value in properties],
        "collector_version": "1",
    }  # fmt: skip


def failed(name="qm1", which="gone", at=AT, **more):
    properties = [(7, None, None), (11, None, None)]
    format_name = f"DIRECT=OS:{name}\\private$\\{which}"
    return line("queue", format_name, properties, name=name, at=at) | {"hresult": 0xC00E0003} | more


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path
