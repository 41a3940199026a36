"""The rules of numbers in words of their own: plain loops over packets, slow, for comparison with the real ones.

A packet is a dictionary: side (0, 1), at (offset), size, time, counted, dm (True, False, None: not seen), establishes,
header (None, or a dictionary: ack, r, flags, user, recoverable, window).
"""

import itertools


def stretches(packets, ends_at=lambda _packet: False):
    """Lists of packets of one side that follow each other without a byte between."""
    found = []
    for packet in packets:
        joins = found and found[-1][-1]["at"] + found[-1][-1]["size"] == packet["at"] and not ends_at(packet)
        if joins:
            found[-1].append(packet)
        else:
            found.append([packet])
    return found


def number(packets, name, which, says, expire, ends_at=lambda _packet: False):
    """Set ``packet[name]`` in the packets that ``which`` chooses; ``says`` is the header's field that counts them."""
    for packet in packets:
        packet[name] = None
    for stretch in stretches(packets, ends_at):
        anchor = next((i for i, p in enumerate(stretch) if p["establishes"] or p["header"]), None)
        if anchor is None:
            continue
        at = stretch[anchor]
        count = 0 if at["establishes"] else at["header"][says]
        for packet in stretch[anchor + 1 :]:
            if which(packet):
                count += 1
                packet[name] = count
        if at["establishes"]:
            continue
        count = at["header"][says]
        if which(at):
            at[name] = count
            count -= 1
        steps = 0
        for packet in reversed(stretch[:anchor]):
            if which(packet):
                steps += 1
                if steps > 65_535:
                    break
                if at["time"] - packet["time"] <= expire:
                    packet[name] = count
                count -= 1
        numbers = [p[name] for p in stretch if p[name] is not None]
        if numbers and min(numbers) < 1:
            for packet in stretch:
                if packet[name] is not None:
                    packet[name] += 65_536


def number_side(packets, expire):
    number(packets, "n", lambda p: p["counted"], "user", expire)
    number(
        packets, "m", lambda p: p["counted"] and p["dm"] is True, "recoverable", expire,
        ends_at=lambda p: p["counted"] and p["dm"] is None,
    )  # fmt: skip


def too_late(packets, place, name):
    """The time of the first later packet of the side that is numbered 32768 more, or more; None without one."""
    wanted = packets[place][name] + 32_768
    return next((p["time"] for p in packets[place + 1 :] if p[name] is not None and p[name] >= wanted), None)


def first_header(packets, place, name, others, means):
    packet, limit = packets[place], too_late(packets, place, name)
    for other in others:
        header = other["header"]
        if header is None or other["time"] < packet["time"] or (limit is not None and other["time"] >= limit):
            continue
        if means(header, packet[name]):
            return other
    return None


def acknowledges(header, n):
    return (header["ack"] - n) % 65_536 < 32_768


def stores(header, m):
    k = (m - header["r"]) % 65_536
    return header["r"] > 0 and k < 32 and bool(header["flags"] >> k & 1)


def acknowledge_side(packets, others):
    """Set ``acked`` and ``stored`` in the packets of a side: the other side's packet with that header, or None."""
    for place, packet in enumerate(packets):
        packet["acked"] = packet["stored"] = None
        if packet["n"] is not None:
            packet["acked"] = first_header(packets, place, "n", others, acknowledges)
        if packet["m"] is not None:
            packet["stored"] = first_header(packets, place, "m", others, stores)


def surely(packets, others, window):
    """Set ``sure`` in the counted packets of a side that have no number."""
    carriers = [other for other in others if other["header"]]
    counted = [packet for packet in packets if packet["counted"]]
    for stretch in stretches(packets):
        for place, packet in enumerate(stretch):
            packet["sure"] = False
            if not packet["counted"] or packet["n"] is not None:
                continue
            first = next(p for p in stretch if p["counted"])
            base = [i for i, c in enumerate(carriers) if c["time"] < packet["time"] and c["time"] >= first["time"]]
            if not base:
                continue
            s0 = carriers[base[-1]]
            c = sum(1 for p in stretch[: place + 1] if p["counted"] and p["time"] > s0["time"])
            here = next(i for i, p in enumerate(counted) if p is packet)
            last = counted[here + 32_767]["time"] if here + 32_767 < len(counted) else None
            total = 0
            for before, each in zip(carriers[base[-1] :], carriers[base[-1] + 1 :], strict=False):
                step = (each["header"]["ack"] - before["header"]["ack"]) % 65_536
                if step < 32_768 and (last is None or each["time"] <= last):
                    total += step
            packet["sure"] = total >= max(window, 64) + c


def full_us(packets, windows, end):
    """How long the numbered packets in flight were at least the smaller window: time by time."""
    sent = [p for p in packets if p["n"] is not None]
    if not sent:
        return 0
    start = min(p["time"] for p in sent)
    times = {p["time"] for p in sent} | {p["acked"]["time"] for p in sent if p["acked"]}
    times |= {time for side in windows for time, _ in side}
    points = sorted({*(t for t in times if start <= t < end), end} if end > start else {end})
    total = 0
    for now, then in itertools.pairwise(points):
        flying = sum(1 for p in sent if p["time"] <= now and not (p["acked"] and p["acked"]["time"] <= now))
        limits = []
        for side in windows:
            said = [value for time, value in sorted(side, key=lambda each: each[0]) if time <= now]
            limits.append(said[-1] if said else 64)
        total += (then - now) if flying >= min(limits) else 0
    return total
