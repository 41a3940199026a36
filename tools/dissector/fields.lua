-- The protocol, its fields and preferences, and how values are shown.
local msmq = Proto("msmq", "Message Queuing (MSMQ)")
local fields = {}  -- by abbreviation

local function make_field(row)
  local names = row.names and declared.names[row.names]
  local maker = ProtoField[row.type]
  if row.type == "bool" then
    return maker(row.abbr, row.label, row.bits or base.NONE, nil, row.mask, row.text)
  elseif row.type == "absolute_time" then
    return maker(row.abbr, row.label, base.UTC, row.text)
  elseif row.type == "framenum" then
    return maker(row.abbr, row.label, base.NONE, frametype[row.frametype], 0, row.text)
  elseif row.type == "guid" then
    return maker(row.abbr, row.label, row.text)
  elseif row.type == "string" or row.type == "bytes" then
    return maker(row.abbr, row.label, base.NONE, row.text)
  end
  return maker(row.abbr, row.label, row.hex and base.HEX or base.DEC, names, row.mask, row.text)
end

-- Fields that no table has: links to packets, and what is left of headers.
local LINKS = {
  {abbr = "msmq.request_packet", label = "request in", frametype = "REQUEST", text = "packet with the end of the request"},
  {abbr = "msmq.response_packet", label = "response in", frametype = "RESPONSE", text = "packet with the end of the response"},
  {abbr = "msmq.session_acked_by", label = "acknowledged in", frametype = "ACK", text = "first packet whose SessionHeader acknowledges this one"},
  {abbr = "msmq.acknowledges", label = "acknowledges", frametype = "ACK", text = "packet that this SessionHeader is the first to acknowledge"},
  {abbr = "msmq.stored_by", label = "stored, said in", frametype = "ACK", text = "first packet whose SessionHeader says that this one is on disk"},
  {abbr = "msmq.stores", label = "says stored", frametype = "ACK", text = "packet of which this SessionHeader is the first to say that it is on disk"},
  {abbr = "msmq.message_packet", label = "message in", frametype = "REQUEST", text = "packet with the message that this one acknowledges"},
  {abbr = "msmq.acknowledgement_packet", label = "acknowledgement in", frametype = "RESPONSE", text = "packet with an acknowledgement of this message"},
}
for _, link in ipairs(LINKS) do
  link.type = "framenum"
  table.insert(declared.fields, link)
end
for _, row in ipairs({
  {abbr = "msmq.direction", type = "string", label = "direction", text = "request, response or fault"},
  {abbr = "msmq.outcome", type = "string", label = "outcome", text = "ok, fault, encrypted: of an answer"},
  {abbr = "msmq.octets", type = "bytes", label = "octets", text = "octets of a header without a field of their own"},
  {abbr = "msmq.stray", type = "bytes", label = "stray octets", text = "octets where no packet begins"},
  {abbr = "msmq.error", type = "string", label = "error", text = "truncated, malformed, unsupported: as in the column errors, with the field"},
}) do
  table.insert(declared.fields, row)
end

local all = {}
for _, row in ipairs(declared.fields) do
  fields[row.abbr] = make_field(row)
  table.insert(all, fields[row.abbr])
end
msmq.fields = all

local experts = {
  damaged = ProtoExpert.new("msmq.expert.damaged", "damaged packet", expert.group.MALFORMED, expert.severity.ERROR),
  deviation = ProtoExpert.new("msmq.expert.deviation", "not as specified", expert.group.PROTOCOL, expert.severity.WARN),
  stray = ProtoExpert.new("msmq.expert.stray", "octets where no packet begins", expert.group.SEQUENCE, expert.severity.WARN),
  failed = ProtoExpert.new("msmq.expert.failed", "the call failed", expert.group.RESPONSE_CODE, expert.severity.NOTE),
  negative = ProtoExpert.new("msmq.expert.negative", "negative acknowledgement", expert.group.RESPONSE_CODE, expert.severity.WARN),
  refused = ProtoExpert.new("msmq.expert.refused", "connection refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
  sealed = ProtoExpert.new("msmq.expert.sealed", "stub is encrypted", expert.group.SECURITY, expert.severity.CHAT),
}
local all_experts = {}
for _, each in pairs(experts) do
  table.insert(all_experts, each)
end
msmq.experts = all_experts

msmq.prefs.tcp_ports = Pref.range("TCP ports", digits(constants.BINARY_PROTOCOL_PORT), "Ports of the binary protocol", 65535)
msmq.prefs.udp_ports = Pref.range("UDP ports", digits(constants.PING_PORT), "Ports of its pings", 65535)
msmq.prefs.rpc = Pref.bool("Show RPC calls", true, "Show calls of the interfaces of Message Queuing, and the messages in them")

local tcp_stream = Field.new("tcp.stream")
local lost_segment = Field.new("tcp.analysis.lost_segment")
local addresses = {
  src = {Field.new("ip.src"), Field.new("ipv6.src")}, dst = {Field.new("ip.dst"), Field.new("ipv6.dst")},
}

-- The octets of the innermost source ("src") or destination ("dst"): names of hosts may change while a file is read.
local function address(which)
  for _, field in ipairs(addresses[which]) do
    local found = {field()}
    if #found > 0 then
      return found[#found].range:raw()
    end
  end
  return ""
end

-- Add a value of a column; without octets it is computed from others.
local function show(tree, name, value, range)
  if value == nil then
    return nil
  end
  local item
  if range then
    item = tree:add(fields["msmq." .. name], range, value)
  else
    item = tree:add(fields["msmq." .. name], value)
    item:set_generated()
  end
  return item
end

local function show_error(tree, raised)
  local text = raised.code .. ": " .. raised.field
  local is_damage = raised.code ~= "malformed" or not raised.soft
  show(tree, "error", text):add_proto_expert_info(is_damage and experts.damaged or experts.deviation, text)
end

-- Show the fields of a declared header at a place, as far as its octets are there.
local function show_header(tree, tvb, at, stop, layout)
  for _, field in ipairs(declared.headers[layout].fields) do
    local place = at + field.at
    if place + field.size > stop then
      return
    end
    local range = tvb(place, field.size)
    if field.abbr == "msmq.sent_at" then
      local seconds = range:le_uint()
      if seconds > 0 then
        tree:add(fields[field.abbr], range, NSTime.new(seconds, 0))
      end
    else
      local item = tree:add_le(fields[field.abbr], range)
      for _, name in ipairs(field.bits or {}) do
        item:add_le(fields[name], range)
      end
      if field.is_set then
        item:add(fields[field.is_set], range, range:le_uint() ~= 0):set_generated()
      end
    end
  end
end
