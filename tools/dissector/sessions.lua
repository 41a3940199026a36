-- The binary protocol, [MS-MQQB]: packets in the stream of TCP 1801, their numbers, and what acknowledges them.
local sides     -- by stream and sender: what was counted
local packets   -- by frame and place: what the first pass found out of a packet
local sequences -- by TxSequenceID: the packets with its messages
local order     -- counts packets in the order of the file
local holes     -- frames before which octets are missing

local function forget_sessions()
  sides, packets, sequences, order, holes = {}, {}, {}, 0, {}
end

-- What one end of a stream sent: that of the source ("src") or the destination ("dst") of this frame.
local function side_of(stream, which, port)
  local name = stream.value .. " " .. port .. " " .. address(which)
  sides[name] = sides[name] or {
    session = {unnumbered = {}, by_number = {}}, recoverable = {unnumbered = {}, by_number = {}}, headers = {},
  }
  return sides[name]
end

-- Flags and PacketSize where a header of a packet is; nil where none is.
local function packet_size(tvb, at)
  if tvb:len() - at < constants.MIN_STEP_BYTES or tvb(at, 1):uint() ~= constants.PACKET_VERSION
    or tvb(at + 4, 4):le_uint() ~= constants.PACKET_SIGNATURE then
    return nil
  end
  local size = tvb(at + 8, 4):le_uint()
  if size < constants.MIN_PACKET_BYTES or size > constants.MAX_PACKET_BYTES then
    return nil
  end
  return size, tvb(at + 2, 2):le_uint()
end

local INTERNAL_TYPES = {
  [constants.SESSION_ACK_BYTES] = constants.SESSION_ACK,
  [constants.ESTABLISH_CONNECTION_BYTES] = constants.ESTABLISH_CONNECTION,
  [constants.CONNECTION_PARAMETERS_BYTES] = constants.CONNECTION_PARAMETERS,
}

-- Whether a valid header is at a place; fields that are not there are not asked.
local function is_valid_header(tvb, at)
  local size, flags = packet_size(tvb, at)
  if not size then
    return false
  end
  local seen = tvb:len() - at
  if has(flags, constants.BASE_FLAG_IN) then
    local kind = INTERNAL_TYPES[size]
    if not kind or (seen >= 16 and tvb(at + 12, 4):le_uint() ~= constants.INFINITE_TIMEOUT) then
      return false
    end
    return seen < 20 or bits(tvb(at + 18, 2):le_uint(), 0, 4) == kind
  end
  if size < constants.MIN_MESSAGE_BYTES then
    return false
  end
  if seen < constants.CHECKED_HEADER_BYTES then
    return true
  end
  local word = tvb(at + 60, 4):le_uint()
  for _, name in ipairs(declared.queue_names) do
    if name.name ~= "ResponseQueue" and not name.allowed[bits(word, name.shift, 3)] then
      return false
    end
  end
  return has(word, constants.USER_FLAG_MP)
end

-- The place of the next valid header behind which another one is, or the octets end; nil without one.
local function find_header(tvb, at)
  local raw, place = tvb:raw(at), 1
  while true do
    local found = raw:find("LIOR", place + 4, true)
    if not found then
      return nil
    end
    local begin = at + found - 5
    if is_valid_header(tvb, begin) then
      local size = packet_size(tvb, begin)
      local after = begin + size
      if after + constants.MIN_STEP_BYTES > tvb:len() or is_valid_header(tvb, after)
        or after + declared.headers.SessionHeader.size + constants.MIN_STEP_BYTES > tvb:len()
        or is_valid_header(tvb, after + declared.headers.SessionHeader.size) then
        return begin
      end
    end
    place = found - 3
  end
end

-- Octets of a packet with its SessionHeader, which PacketSize does not count; nil if further octets decide.
local function whole_length(tvb, at, size, flags)
  if has(flags, constants.BASE_FLAG_IN) or not has(flags, constants.BASE_FLAG_SH) then
    return size
  end
  local after, more = at + size, declared.headers.SessionHeader.size
  if after + more <= tvb:len() and is_valid_header(tvb, after) and not is_valid_header(tvb, after + more) then
    return size
  end
  return size + more
end

-- Number the counted packets of a side, and those before the first anchor once it is seen.
local function count_packet(numbers, packet, field)
  if numbers.count then
    numbers.count = numbers.count + 1
    packet[field] = numbers.count
    numbers.by_number[numbers.count % 65536] = packet
  else
    table.insert(numbers.unnumbered, packet)
  end
end

local function anchor(numbers, sent, field)
  if numbers.count then
    return false
  end
  local total = #numbers.unnumbered
  if sent < total then
    sent = sent + 65536
  end
  for place, packet in ipairs(numbers.unnumbered) do
    packet[field] = sent - total + place
    numbers.by_number[packet[field] % 65536] = packet
  end
  numbers.count, numbers.unnumbered = sent, {}
  return true
end

-- The packets of a side that a SessionHeader is the first to acknowledge: from its number back to one that already is.
local function acknowledge(side, header)
  local numbers, number = side.session, header.ack
  if numbers.count and (number - numbers.count) % 65536 < 32768 then
    number = numbers.count % 65536
  end
  for _ = 1, 32768 do
    local packet = numbers.by_number[number]
    if not packet or packet.session_acked_by then
      return
    end
    if packet.order < header.packet.order then
      packet.session_acked_by = header.packet.frame
      table.insert(header.packet.acknowledges, packet.frame)
    end
    number = (number - 1) % 65536
  end
end

local function note_stored(side, header)
  if header.stored == 0 then
    return
  end
  for place = 0, 31 do
    local packet = side.recoverable.by_number[(header.stored + place) % 65536]
    if packet and bits(header.stored_flags, place, 1) == 1 and not packet.stored_by
      and packet.order < header.packet.order then
      packet.stored_by = header.packet.frame
      table.insert(header.packet.stores, packet.frame)
    end
  end
end

-- Count a packet of the first pass; other is the side that it acknowledges.
local function follow(side, other, packet)
  if packet.kind == "establish_connection" then
    side.session.count, side.recoverable.count = 0, 0
  end
  if packet.counted then
    count_packet(side.session, packet, "session_number")
    if packet.recoverable then
      count_packet(side.recoverable, packet, "recoverable_number")
    end
  end
  local header = packet.header
  if not header then
    return
  end
  local numbered = anchor(side.session, header.sent, "session_number")
  local stored = anchor(side.recoverable, header.sent_recoverable, "recoverable_number")
  if numbered or stored then
    for _, earlier in ipairs(other.headers) do  -- these came before the numbers were known
      acknowledge(side, earlier)
      note_stored(side, earlier)
    end
  end
  header.packet = packet
  acknowledge(other, header)
  note_stored(other, header)
  if not other.session.count or not other.recoverable.count then
    table.insert(side.headers, header)
  end
end

-- Octets are missing before what follows: numbers are not known from here on.
local function lose_step(side)
  side.session.count, side.recoverable.count = nil, nil
  side.session.unnumbered, side.recoverable.unnumbered = {}, {}
end

-- Note once for a frame that TCP misses octets before it.
local function note_hole(stream, pinfo)
  if stream and lost_segment() and not holes[pinfo.number] then
    holes[pinfo.number] = true
    lose_step(side_of(stream, "src", pinfo.src_port))
  end
end

local function read_session_header(tvb, at)
  local values = {}
  for place, field in ipairs(declared.headers.SessionHeader.fields) do
    values[place] = tvb(at + field.at, field.size):le_uint()
  end
  return {ack = values[1], stored = values[2], stored_flags = values[3], sent = values[4], sent_recoverable = values[5]}
end

local ACK_LABEL = "QM Ordering Ack"

-- Order and final acks are messages for the order queue whose label says so, [MS-MQQB] 2.2.4, 2.2.5.
local function kind_of_message(chain)
  if not chain.label or chain.label.text ~= ACK_LABEL
    or chain.label.size ~= 2 * (#ACK_LABEL + 1) then
    return "user_message"
  end
  local queue = chain.queues.DestinationQueue
  local is_order = queue.kind == 3 and chain.tvb(queue.at, 4):le_uint() == 4
  if queue.kind == constants.DIRECT_NAME_TYPE then
    local text = utf16(chain.tvb, queue.at, queue.size) or ""
    is_order = text:match("[^\\]*$"):lower() == "order_queue$"
  end
  local class = chain:field("MessagePropertiesHeader", chain.properties_at, "MessageClass")
  if is_order and class == constants.MQMSG_CLASS_ORDER_ACK then
    return "order_ack"
  end
  return is_order and class >= 0x4000 and "final_ack" or "user_message"
end

-- Numbers, and links to other packets.
local function show_packet_links(tree, packet)
  for _, name in ipairs({"session_number", "recoverable_number", "session_acked_by", "stored_by"}) do
    show(tree, name, packet[name])
  end
  for _, name in ipairs({"acknowledges", "stores", "message_packet", "acknowledgement_packet"}) do
    for _, frame in ipairs(packet[name]) do
      show(tree, name, frame)
    end
  end
end

local function link(packet, message)
  table.insert(packet.message_packet, message.frame)
  table.insert(message.acknowledgement_packet, packet.frame)
end

-- Note a transactional message, or find those that an ack means: a final ack the one with its number, an order ack all up
-- to it that no order ack meant before.
local function follow_sequence(packet)
  if not packet.sequence then
    return
  end
  sequences[packet.sequence] = sequences[packet.sequence] or {by_number = {}, waiting = {}}
  local sequence, still_waiting = sequences[packet.sequence], {}
  if packet.kind == "user_message" then
    sequence.by_number[packet.number] = sequence.by_number[packet.number] or {}
    table.insert(sequence.by_number[packet.number], packet)
    table.insert(sequence.waiting, packet)
  elseif packet.kind == "final_ack" then
    for _, message in ipairs(sequence.by_number[packet.number] or {}) do
      link(packet, message)
    end
  else
    for _, message in ipairs(sequence.waiting) do
      if message.number <= packet.number then
        link(packet, message)
      else
        table.insert(still_waiting, message)
      end
    end
    sequence.waiting = still_waiting
  end
end

-- Show the body of an order or final ack; return where its sequence and number are, if they are there.
local function show_acknowledgement(tree, chain)
  local tvb, at, stop = chain.tvb, chain.body.at, chain.body.at + chain.body.seen
  local sequence, message = declared.headers.AcknowledgedSequence, declared.headers.AcknowledgedMessage
  local sub = tree:add(msmq, tvb(at, chain.body.seen), "Acknowledgement")
  show_header(sub, tvb, at, stop, "AcknowledgedSequence")
  if stop - at < sequence.size + message.size then
    show_error(tree, {code = "truncated", field = "MessagePropertiesHeader.MessageBody"})
  end
  local class = chain:field("MessagePropertiesHeader", chain.properties_at, "MessageClass")
  if class ~= constants.MQMSG_CLASS_ORDER_ACK then
    show_header(sub, tvb, at + sequence.size, stop, "AcknowledgedMessage")
    if stop - at >= sequence.size + message.size then
      local place = at + sequence.size
      local id = guid(tvb, place, false, true) .. "\\" .. digits(tvb(place + 16, 4):le_uint())
      show(sub, "acknowledged_message_id", id, tvb(place, message.size))
    end
  end
  return stop - at >= 12 and at or nil
end

-- Show an internal packet; return its kind.
local function show_internal(tree, tvb, at, stop)
  local base = declared.headers.BaseHeader.size
  local sub = tree:add(msmq, tvb(at, math.min(base, stop - at)), "BaseHeader")
  show_header(sub, tvb, at, stop, "BaseHeader")
  at = at + base
  if stop - at < declared.headers.InternalHeader.size then
    show_error(tree, {code = "truncated", field = "InternalHeader"})
    return "unknown"
  end
  sub = tree:add(msmq, tvb(at, declared.headers.InternalHeader.size), "InternalHeader")
  show_header(sub, tvb, at, stop, "InternalHeader")
  local flags = tvb(at + 2, 2):le_uint()
  local kind = declared.names["internal.packet_type"][bits(flags, 0, 4)] or "unknown"
  if bits(flags, 4, 1) == 1 then
    sub:add_proto_expert_info(experts.refused, "refused: " .. kind)
  end
  at = at + declared.headers.InternalHeader.size
  if at >= stop then
    return kind
  end
  local names = {establish_connection = "EstablishConnectionHeader", connection_parameters = "ConnectionParametersHeader"}
  if names[kind] then
    sub = tree:add(msmq, tvb(at, stop - at), names[kind])
    show_header(sub, tvb, at, stop, names[kind])
    local size = declared.headers[names[kind]].size
    if stop - at > size then
      sub:add(fields["msmq.octets"], tvb(at + size, stop - at - size)):prepend_text("padding, ")
    end
  elseif kind == "session_ack" and stop - at >= declared.headers.SessionHeader.size then
    sub = tree:add(msmq, tvb(at, stop - at), "SessionHeader")
    show_header(sub, tvb, at, stop, "SessionHeader")
  end
  return kind
end

local KIND_LABELS = {
  user_message = "message", order_ack = "order ack", final_ack = "final ack", session_ack = "session ack",
  establish_connection = "establish connection", connection_parameters = "connection parameters", unknown = "unknown packet",
}

-- Show one packet; return what the first pass keeps of it, and a line about it.
local function show_packet(tree, tvb, at, stop, flags)
  local found = {acknowledges = {}, stores = {}, message_packet = {}, acknowledgement_packet = {}}
  if has(flags, constants.BASE_FLAG_IN) then
    found.kind = show_internal(tree, tvb, at, stop)
    local header = at + declared.headers.BaseHeader.size + declared.headers.InternalHeader.size
    if found.kind == "session_ack" and stop - header >= declared.headers.SessionHeader.size then
      found.header = read_session_header(tvb, header)
    end
    return found, KIND_LABELS[found.kind]
  end
  local chain, id = show_message(tree, tvb, at, stop, constants.PROTOCOL_BINARY)
  found.kind, found.counted = kind_of_message(chain), true
  found.recoverable = chain.flags and bits(chain.flags, 5, 2) == 1
  if chain.session_at then
    found.header = read_session_header(tvb, chain.session_at)
  end
  local line, sequence_at = {KIND_LABELS[found.kind]}, nil
  if found.kind ~= "user_message" then
    sequence_at = chain.whole.properties and show_acknowledgement(tree, chain)
  elseif chain.transaction_at then
    sequence_at = chain.transaction_at + 4
  end
  if sequence_at then
    found.sequence, found.number = tvb(sequence_at, 8):raw(), tvb(sequence_at + 8, 4):le_uint()
  end
  if chain.properties_at then
    local class = chain:field("MessagePropertiesHeader", chain.properties_at, "MessageClass")
    if class ~= 0 then
      table.insert(line, code_name("class", class, 4))
    end
  end
  local queue = chain.whole.user and user_queue(chain, "DestinationQueue")
  if queue then
    table.insert(line, "to " .. printable(queue))
  end
  if found.kind == "user_message" and chain.whole.properties and chain.label.text and chain.label.text ~= "" then
    table.insert(line, "\"" .. printable(chain.label.text) .. "\"")
  end
  return found, table.concat(line, " ")
end

-- Dissect a whole packet: in the first pass it is counted, later ones show what was found.
local function dissect_packet(tvb, at, stop, flags, pinfo, tree, ends)
  local sub = tree:add(msmq, tvb(at, stop - at))
  local packet, line = show_packet(sub, tvb, at, stop, flags)
  show(sub, "kind", packet.kind)
  sub:append_text(", " .. line)
  local key = pinfo.number .. "/" .. tvb:offset() .. "/" .. at
  if packets[key] then
    packet = packets[key]
  elseif ends then
    order = order + 1
    packet.frame, packet.order = pinfo.number, order
    packets[key] = packet
    follow(ends[1], ends[2], packet)
    follow_sequence(packet)
  end
  show_packet_links(sub, packet)
  return line
end

local function show_stray(tree, tvb, at, size)
  local sub = tree:add(msmq, tvb(at, size), "Message Queuing, octets where no packet begins")
  sub:add(fields["msmq.stray"], tvb(at, size)):add_proto_expert_info(experts.stray)
end

-- A ping, [MS-MQQB] 2.2.7.
local function dissect_ping(tvb, pinfo, tree)
  local size = declared.headers.Ping.size
  if tvb:len() ~= size or tvb(2, 2):le_uint() ~= constants.PING_SIGNATURE then
    return 0
  end
  local sub = tree:add(msmq, tvb(0, size), "Message Queuing ping")
  show_header(sub, tvb, 0, size, "Ping")
  local is_answer = pinfo.src_port == constants.PING_PORT
  if is_answer and bits(tvb(0, 2):le_uint(), 1, 1) == 1 then
    sub:add_proto_expert_info(experts.refused, "ping refused")
  end
  pinfo.cols.protocol = "MSMQ"
  pinfo.cols.info = is_answer and "ping answer" or "ping"
  return size
end

-- Cut what TCP gives into packets; returns how many octets are used, 0 if nothing here is of the protocol.
function msmq.dissector(tvb, pinfo, tree)
  if pinfo.port_type ~= 2 then
    return dissect_ping(tvb, pinfo, tree)
  end
  local stream = tcp_stream()
  local ends = stream and {side_of(stream, "src", pinfo.src_port), side_of(stream, "dst", pinfo.dst_port)}
  note_hole(stream, pinfo)
  local at, lines, size_of_all = 0, {}, tvb:len()
  local function wait(size)
    if pinfo.can_desegment == 0 or size_of_all < tvb:reported_len() then
      return false
    end
    pinfo.desegment_offset, pinfo.desegment_len = at, size
    return true
  end
  while at < size_of_all do
    local left = size_of_all - at
    local size, flags = packet_size(tvb, at)
    if size then
      local length = whole_length(tvb, at, size, flags)
      if length > left and wait(length - left) then
        break
      end
      table.insert(lines, dissect_packet(tvb, at, at + math.min(length, left), flags, pinfo, tree, ends))
      at = at + math.min(length, left)
    elseif left < constants.MIN_STEP_BYTES and tvb(at, 1):uint() == constants.PACKET_VERSION
      and wait(DESEGMENT_ONE_MORE_SEGMENT) then
      break
    else
      local found = find_header(tvb, at)
      if not found and #lines == 0 and at == 0 and not (ends and (ends[1].session.count or ends[2].session.count)) then
        return 0
      end
      if ends and not pinfo.visited then
        lose_step(ends[1])
      end
      local stop = found or size_of_all
      show_stray(tree, tvb, at, stop - at)
      at = stop
    end
  end
  pinfo.cols.protocol = "MSMQ"
  if #lines > 0 then
    pinfo.cols.info = table.concat(lines, "; ")
  end
  return size_of_all
end

-- On other ports: the first octets of a side are the header of an EstablishConnection packet.
msmq:register_heuristic("tcp", function(tvb, pinfo, tree)
  if tvb:len() < constants.MIN_SEARCH_BYTES or not is_valid_header(tvb, 0)
    or packet_size(tvb, 0) ~= constants.ESTABLISH_CONNECTION_BYTES then
    return false
  end
  pinfo.conversation = msmq
  msmq.dissector(tvb, pinfo, tree)
  return true
end)

-- Listen on the ports of the preferences.
local listening = {}
local function listen()
  for name, ports in pairs({["tcp.port"] = msmq.prefs.tcp_ports, ["udp.port"] = msmq.prefs.udp_ports}) do
    local dissectors = DissectorTable.get(name)
    if listening[name] and listening[name] ~= "" then
      dissectors:remove(listening[name], msmq)
    end
    if ports ~= "" then
      dissectors:add(ports, msmq)
    end
    listening[name] = ports
  end
end
listen()
msmq.prefs_changed = listen
